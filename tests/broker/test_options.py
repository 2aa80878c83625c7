"""Addresses are read once, and secrets never show."""

from __future__ import annotations

import pytest

from penstock.broker.options import NatsOptions
from penstock.core.errors import ConfigError


def test_a_url_with_several_servers_gives_each_a_port() -> None:
    options = NatsOptions.from_url("nats://one:5000, two,[::1]:4333")

    assert options.servers == ("nats://one:5000", "nats://two:4222", "nats://[::1]:4333")


def test_credentials_in_a_url_are_taken_out_of_the_address_and_decoded() -> None:
    options = NatsOptions.from_url("nats://ann:p%40ss@host")

    assert (options.user, options.password) == ("ann", "p@ss")
    assert options.servers == ("nats://host:4222",)


def test_a_lone_word_before_the_host_is_a_token() -> None:
    assert NatsOptions.from_url("nats://s3cret@host").token == "s3cret"


def test_a_tls_url_asks_for_encryption() -> None:
    assert NatsOptions.from_url("tls://host").wants_tls
    assert not NatsOptions.from_url("nats://host").wants_tls


def test_keywords_win_over_the_url() -> None:
    assert NatsOptions.from_url("nats://ann:a@host", user="bob").user == "bob"


def test_a_repr_shows_no_secret() -> None:
    shown = repr(NatsOptions.from_url("nats://ann:hush@host", token="hush", name="shop"))

    assert "hush" not in shown
    assert "shop" in shown


@pytest.mark.parametrize(
    "url",
    ["", "ws://host", "http://host", "nats://host:99999", "nats://", "nats://a:b@x,nats://c:d@y"],
)
def test_an_address_that_cannot_be_meant_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError):
        NatsOptions.from_url(url)


def test_credentials_are_not_hidden_in_a_server_address() -> None:
    with pytest.raises(ConfigError, match="from_url"):
        NatsOptions(servers=("nats://ann:hush@host",))
