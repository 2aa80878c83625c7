"""How to reach a NATS cluster: addresses, identity, encryption and bounds.

Secrets live only here and never show in a ``repr``. Files (creds, nkey seed, keys) are
named, not held, and read again at every connect, so renewed credentials are picked up.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from penstock.core.errors import ConfigError

__all__ = ["NatsOptions"]

DEFAULT_PORT = 4222


@dataclass(frozen=True, slots=True)
class NatsOptions:
    """Everything a link needs to know. Servers are ``host:port`` or ``nats://host:port``."""

    servers: tuple[str, ...]
    name: str = "penstock"
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    creds_file: str | None = None
    nkey_seed_file: str | None = None
    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_first: bool = False  # handshake before the server's INFO, where the server is set up so
    inbox_prefix: str = "_INBOX"
    connect_timeout: timedelta = timedelta(seconds=5)
    request_timeout: timedelta = timedelta(seconds=5)
    reconnect_wait: timedelta = timedelta(milliseconds=250)
    ping_interval: timedelta = timedelta(seconds=20)  # two missed answers: the server is gone
    max_in_flight: int = 8192
    max_pending_bytes: int = 8 * 1024 * 1024

    def __post_init__(self) -> None:
        if not self.servers:
            raise ConfigError("no NATS server is named", remedy="set PENSTOCK_NATS_URL")
        if any("@" in server for server in self.servers):
            raise ConfigError(
                "a server address holds credentials", remedy="build it with NatsOptions.from_url"
            )
        if self.tls_key is not None and self.tls_cert is None:
            raise ConfigError("tls_key is given without tls_cert")
        if self.max_in_flight < 1 or self.max_pending_bytes < 1:
            raise ConfigError("max_in_flight and max_pending_bytes must be at least 1")

    @classmethod
    def from_url(cls, url: str, **overrides: Any) -> NatsOptions:
        """Options from ``nats://user:password@host:4222,host2`` (a token alone works too).

        ``tls://`` asks for encryption. Keywords win over what the URL says. Raises
        `ConfigError` for an address that cannot be meant.
        """
        parts = [_parsed(part.strip()) for part in url.split(",") if part.strip()]
        known: dict[str, Any] = {"servers": tuple(map(_address, parts))}
        known.update(_identity(parts))
        if any(part.scheme == "tls" for part in parts):
            known["tls"] = True
        return cls(**{**known, **overrides})

    @property
    def wants_tls(self) -> bool:
        """Whether an unencrypted connection would be against what was asked."""
        return self.tls or self.tls_first or bool(self.tls_ca or self.tls_cert)

    def tls_context(self) -> ssl.SSLContext:
        """A context that verifies the server. Raises ``OSError`` for unreadable files."""
        context = ssl.create_default_context(cafile=self.tls_ca)
        if self.tls_cert is not None:
            context.load_cert_chain(self.tls_cert, self.tls_key)
        return context

    def named_files(self) -> list[Path]:
        """The files with secrets that every connect must be able to read."""
        return [Path(name) for name in (self.creds_file, self.nkey_seed_file) if name is not None]


def _parsed(address: str) -> SplitResult:
    parts = urlsplit(address if "://" in address else f"nats://{address}")
    if parts.scheme not in ("nats", "tls"):
        raise ConfigError(
            f"NATS addresses of scheme {parts.scheme!r} are not supported",
            remedy="use nats:// or tls://",
        )
    try:
        port = parts.port
    except ValueError:
        port = -1
    if not parts.hostname or port == -1:
        raise ConfigError(
            "a NATS address has no usable host or port", remedy="write nats://host:4222"
        )
    return parts


def _address(parts: SplitResult) -> str:
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or DEFAULT_PORT}"


def _identity(parts: list[SplitResult]) -> dict[str, str]:
    named = {(part.username, part.password) for part in parts if part.username is not None}
    if len(named) > 1:
        raise ConfigError(
            "the addresses name different credentials", remedy="give one identity for all servers"
        )
    for user, password in named:
        if password is None:
            return {"token": unquote(user or "")}
        return {"user": unquote(user or ""), "password": unquote(password)}
    return {}
