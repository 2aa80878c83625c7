"""The fast link rides on private names of nats-py; when one moves, this says which.

After raising the pin: make these pass, then run the whole of tests/broker on both kinds of link.
"""

from __future__ import annotations

import asyncio
import inspect
from importlib.metadata import version

import pytest
from nats.aio.client import Client
from nats.protocol.parser import Parser

from penstock.broker.dial import GuardedClient
from penstock.broker.fast_link import PRIVATE_NAMES, FastLink, missing_names
from penstock.broker.link import Link, NatsOptions
from penstock.broker.plain_link import PlainLink

from .conftest import OpenLink


def test_nats_py_is_the_version_that_was_proved() -> None:
    assert version("nats-py") == "2.16.0"


@pytest.mark.parametrize("name", PRIVATE_NAMES)
def test_the_client_still_has(name: str) -> None:
    assert hasattr(Client(), name)


def test_nothing_the_fast_link_needs_is_missing() -> None:
    assert missing_names() == []


def test_the_hooks_are_still_called_the_way_we_override_them() -> None:
    for hook in ("_process_info", "_process_err", "_process_op_err"):
        ours = list(inspect.signature(getattr(GuardedClient, hook)).parameters)
        assert ours == list(inspect.signature(getattr(Client, hook)).parameters), hook
    assert inspect.iscoroutinefunction(Parser.parse)
    assert list(inspect.signature(Client._process_msg).parameters)[1:] == [
        *("sid", "subject", "reply", "data", "headers")
    ]


def test_the_flusher_takes_pending_before_it_asks_whether_the_future_is_done() -> None:
    """Our kick relies on this order: ``done()`` means that the bytes are with the socket."""
    source = inspect.getsource(Client._flusher)

    assert source.index("writelines(self._pending") < source.index("future.done()")


def test_a_subscription_is_numbered_one_up_before_anything_is_awaited() -> None:
    source = inspect.getsource(Client.subscribe)

    assert source.index("self._sid += 1") < source.index("await ")


async def test_the_tap_sees_what_waits_in_a_stream() -> None:
    stream = asyncio.StreamReader()
    assert not stream._buffer  # type: ignore[attr-defined]
    stream.feed_data(b"PING\r\n")
    assert stream._buffer == b"PING\r\n"  # type: ignore[attr-defined]


async def test_the_guard_ran_on_a_real_connection(open_link: OpenLink) -> None:
    link = await open_link()

    assert isinstance(link, FastLink)
    assert link.client.checked
    assert link.client._transport._io_writer.transport is not None


async def test_without_its_private_names_the_plain_link_takes_over(
    nats_server: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.broker.fast_link.PRIVATE_NAMES", (*PRIVATE_NAMES, "_gone"))

    link = await Link.open(NatsOptions.from_url(nats_server.url))  # type: ignore[attr-defined]
    await link.close()

    assert isinstance(link, PlainLink)
    assert "_gone" in caplog.text
