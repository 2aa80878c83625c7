"""Bearer tokens and what their holders may do.

Without tokens everything is open, and then only loopback may be bound: `check_bind`
refuses the rest before anything listens. Tokens are compared in constant time, all of
them on every request, so an answer's time tells nothing about how near a guess was.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from enum import IntEnum

from penstock.core.errors import ConfigError

__all__ = ["Role", "Tokens", "check_bind", "is_loopback", "new_token"]


class Role(IntEnum):
    """Each may do what those before it may."""

    VIEW = 1
    OPERATE = 2
    ADMIN = 3


class Tokens:
    """Roles by token. Empty: everybody is an admin."""

    __slots__ = ("_digests",)

    def __init__(self, tokens: Mapping[str, Role] | None = None) -> None:
        given = tokens or {}
        if "" in given:
            raise ConfigError("a token is empty", remedy="give it text, or leave it out")
        self._digests = [(_digest(token), role) for token, role in given.items()]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def role_of(self, authorization: str) -> Role | None:
        """What the bearer of this ``Authorization`` header may do; ``None``: nobody we know."""
        if not self._digests:
            return Role.ADMIN
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return None
        given = _digest(token.strip())
        found: Role | None = None
        for known, role in self._digests:
            if hmac.compare_digest(known, given):
                found = role
        return found


def new_token() -> str:
    """A token nobody can guess."""
    return secrets.token_urlsafe(24)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_bind(host: str, tokens: Tokens) -> None:
    """Refuse to serve the network without a token. Raises `ConfigError`."""
    if not tokens and not is_loopback(host):
        raise ConfigError(
            f"{host} can be reached from other machines, and no token is set",
            code="http.open",
            remedy="set a token, or bind 127.0.0.1",
        )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
