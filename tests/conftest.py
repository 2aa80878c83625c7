"""Fixtures for everyone: a real NATS server to share, one to break, a link, and an own name.

The shared server lives as long as the xdist worker; tests keep apart by using names that begin
with `unique`. Whoever restarts, kills or freezes a server takes `fresh_nats`. The servers are at
the end of a pipe held by this process, so they are gone even after Ctrl-C or SIGKILL.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest

from penstock.broker.embedded import EmbeddedNats
from penstock.broker.link import Link
from penstock.broker.options import NatsOptions
from penstock.broker.probe import probe
from penstock.core.ids import short_token

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it runs in the background deaf to Ctrl-C, and children inherit that.
    with suppress(ValueError):
        signal.signal(signal.SIGINT, signal.default_int_handler)

SENTINEL = b'{"name":"SENTINEL","subjects":["sentinel.>"],"storage":"file","max_msgs":1}'


@pytest.fixture(scope="session")
def nats_server() -> Iterator[EmbeddedNats]:
    """The server shared by all tests of one worker. Never stop, kill or restart it."""
    with EmbeddedNats() as server:
        keep_one_stream(server)
        yield server


@pytest.fixture
def fresh_nats() -> Iterator[EmbeddedNats]:
    """A server of the test's own: restart, kill and freeze it at will."""
    with EmbeddedNats() as server:
        keep_one_stream(server)
        yield server


@pytest.fixture
async def link(nats_server: EmbeddedNats) -> AsyncIterator[Link]:
    """A connection to the shared server, closed after the test."""
    opened = await Link.open(NatsOptions.from_url(nats_server.url))
    try:
        yield opened
    finally:
        await opened.close(drain=False)


@pytest.fixture
def unique() -> str:
    """A prefix for stream, bucket and subject names that no other test uses."""
    return f"t{short_token()}"


def keep_one_stream(server: EmbeddedNats) -> None:
    """Creating a file stream right after deleting an account's last one fails now and then
    (server error 10049); a stream that stays keeps that away from tests."""
    probe(server.port, "$JS.API.STREAM.CREATE.SENTINEL", SENTINEL)
