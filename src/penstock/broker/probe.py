"""One question to a NATS server, asked synchronously over a bare socket.

For the moments before there is a connection: is the server that was just started ready?
Nothing here reconnects, encrypts or pipelines; everything else uses `Link`.
"""

from __future__ import annotations

import socket
from typing import Any

import msgspec

from penstock.core.errors import PenstockError

__all__ = ["ProbeRefused", "probe"]

INBOX = b"_INBOX.penstock.probe"


class ProbeRefused(PenstockError):
    """The server is there and would not talk with us: credentials, or TLS, are missing."""

    code = "nats.probe"


def probe(
    port: int,
    subject: str,
    payload: bytes = b"",
    *,
    credentials: dict[str, str] | None = None,
    timeout: float = 2.0,
) -> bytes:
    """The answer to one request at a loopback server; ``b""`` when nobody serves ``subject``.

    Raises ``OSError`` (also for a timeout) when the server cannot be reached, `ProbeRefused`
    when it wants credentials that were not given.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
        stream = connection.makefile("rwb")
        info = msgspec.json.decode(stream.readline().removeprefix(b"INFO "))
        if info.get("tls_required"):
            raise ProbeRefused("the server wants TLS")
        stream.write(_question(subject, payload, credentials or {}))
        stream.flush()
        return _answer(stream)


def _question(subject: str, payload: bytes, credentials: dict[str, str]) -> bytes:
    hello = {"verbose": False, "headers": True, "no_responders": True, "lang": "python-probe"}
    connect = msgspec.json.encode(hello | credentials)
    publish = b"PUB %b %b %d" % (subject.encode(), INBOX, len(payload))
    return b"\r\n".join(
        [b"CONNECT " + connect, b"SUB %b 1" % INBOX, publish, payload, b"PING", b""]
    )


def _answer(stream: Any) -> bytes:
    while line := stream.readline():
        word, *rest = line.split()
        if word == b"MSG":
            return bytes(stream.read(int(rest[-1]) + 2)[:-2])
        if word == b"HMSG":  # 503: nobody serves the subject
            return b""
        if word == b"PING":
            stream.write(b"PONG\r\n")
            stream.flush()
        if word == b"-ERR":
            raise ProbeRefused(line.decode(errors="replace").strip())
    raise ConnectionResetError("the server closed the connection")
