"""Tokens open doors as far as their role goes; without any, only this machine gets in."""

from __future__ import annotations

import pytest

from penstock.core.errors import ConfigError
from penstock.web.auth import Role, Tokens, check_bind, is_loopback, new_token

TOKENS = Tokens({"v": Role.VIEW, "o": Role.OPERATE, "ä": Role.ADMIN})


@pytest.mark.parametrize(
    ("header", "role"),
    [
        ("Bearer v", Role.VIEW),
        ("bearer  o ", Role.OPERATE),
        ("Bearer ä", Role.ADMIN),
        ("Bearer x", None),
        ("Bearer ", None),
        ("Basic v", None),
        ("v", None),
        ("", None),
    ],
)
def test_a_header_has_the_role_of_its_token(header: str, role: Role | None) -> None:
    assert TOKENS.role_of(header) == role


def test_without_tokens_everybody_is_an_admin() -> None:
    assert Tokens().role_of("") is Role.ADMIN
    assert not Tokens()


def test_an_empty_token_is_refused() -> None:
    with pytest.raises(ConfigError):
        Tokens({"": Role.VIEW})


def test_the_network_is_served_only_with_a_token() -> None:
    check_bind("127.0.0.1", Tokens())
    check_bind("0.0.0.0", TOKENS)
    with pytest.raises(ConfigError, match="no token is set"):
        check_bind("0.0.0.0", Tokens())


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "[::1]", "localhost"])
def test_loopback_is_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_what_others_reach_is_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_new_tokens_differ() -> None:
    assert len({new_token() for _ in range(100)}) == 100
