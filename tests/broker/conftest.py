"""A factory of links, so that every promise of a link is tried on the fast and on the plain one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from penstock.broker.embedded import EmbeddedNats
from penstock.broker.link import Link, NatsOptions
from penstock.core import codec

OpenLink = Callable[..., Awaitable[Link]]
SECONDS_5 = timedelta(seconds=5)


@pytest.fixture(params=["fast", "plain"])
def link_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Asking for this runs the test twice: once on each kind of link."""
    kind: str = request.param
    monkeypatch.setenv("PENSTOCK_PLAIN_LINK", "1" if kind == "plain" else "0")
    return kind


@pytest.fixture
async def open_link(nats_server: EmbeddedNats) -> AsyncIterator[OpenLink]:
    """``await open_link(**options)``: a link to the shared server or to ``url``."""
    opened: list[Link] = []

    async def open_one(url: str | None = None, **options: Any) -> Link:
        options.setdefault("connect_timeout", SECONDS_5)
        link = await Link.open(NatsOptions.from_url(url or nats_server.url, **options))
        opened.append(link)
        return link

    yield open_one
    for link in opened:
        await link.close(drain=False)


async def api(link: Link, subject: str, body: Any = None) -> Any:
    """One JetStream API call; fails the test on an error answer."""
    payload = b"" if body is None else codec.encode(body)
    reply = await link.request(f"$JS.API.{subject}".encode(), payload)
    answer = codec.decode(reply.payload)
    assert "error" not in answer, answer
    return answer


async def a_stream(link: Link, name: str, **config: Any) -> str:
    """A work queue of this name on subjects ``<name>.>``, with the pull consumer ``c``."""
    stream = {"name": name, "subjects": [f"{name}.>"], "retention": "workqueue", **config}
    await api(link, f"STREAM.CREATE.{name}", stream)
    await a_consumer(link, name)
    return name


async def a_consumer(link: Link, stream: str, name: str = "c", **config: Any) -> None:
    body = {"durable_name": name, "ack_policy": "explicit", "max_ack_pending": -1, **config}
    subject = f"CONSUMER.DURABLE.CREATE.{stream}.{name}"
    await api(link, subject, {"stream_name": stream, "config": body})


async def pending_in(link: Link, stream: str) -> int:
    """How many messages the stream holds."""
    answer = await api(link, f"STREAM.INFO.{stream}")
    held: int = answer["state"]["messages"]
    return held
