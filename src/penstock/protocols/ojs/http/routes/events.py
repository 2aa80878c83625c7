"""Events: pages for who asks again, streams for who listens."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec

from penstock.protocols.ojs.eventlog import EventFilter, Feed
from penstock.protocols.ojs.http.channels import Channel, Message, channel_of, state_message
from penstock.protocols.ojs.http.exchange import Exchange
from penstock.protocols.ojs.http.routing import Routes
from penstock.protocols.ojs.instants import instant_text
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.refusal import Refusal
from penstock.web import sse
from penstock.web.auth import Role
from penstock.web.message import Response, Streaming

__all__ = ["EVENTS"]

EVENTS: Final = Routes("events")
_SSE: Final = "text/event-stream"
_BEAT_S: Final = 15.0
_RETRY_MS: Final = 3_000


@EVENTS.on(
    "GET",
    "/ojs/v1/events",
    role=Role.VIEW,
    gives="EventList",
    query=("types", "queues", "job_types", "after", "limit"),
)
async def poll(x: Exchange) -> Response:
    """Events after one that is known, oldest first."""
    wanted = EventFilter(
        types=x.listed("types"), queues=x.listed("queues"), job_types=x.listed("job_types")
    )
    after = x.request.query("after")[:128]
    page = await x.engine.events.page(wanted, after=after, limit=x.number("limit", 100, 1, 1000))
    return x.ok({"events": page.events, "cursor": page.cursor or None, "has_more": page.has_more})


@EVENTS.on("GET", "/ojs/v1/jobs/{id}/history", role=Role.VIEW, query=("limit",))
async def history(x: Exchange) -> Response:
    """What happened to a job, as far as it is kept."""
    job_id = await x.own_job()
    limit = x.number("limit", 100, 1, 1000)
    page = await x.engine.events.page(EventFilter(subject=job_id), limit=limit)
    entries = [
        {
            "id": event.id,
            "job_id": job_id,
            "event_type": event.type,
            "timestamp": event.time,
            "actor": event.source,
            "data": event.data,
        }
        for event in page.events
    ]
    return x.ok({"job_id": job_id, "history": entries, "has_more": page.has_more})


@EVENTS.on(
    "GET",
    "/ojs/v1/jobs/{id}/events",
    "/ojs/v1/jobs/{id}/progress/stream",
    role=Role.VIEW,
    media=_SSE,
    query=("event_types",),
)
async def of_job(x: Exchange) -> Response | Streaming:
    """A job's transitions and progress as they come; ends with the job."""
    found = await x.engine.info(x.job_id(), tenant=x.tenant)
    if isinstance(found, Refusal):
        return x.refuse(found)
    channel = channel_of(f"job:{found.id}", x.listed("event_types"))
    return _stream(x, channel, found)


@EVENTS.on(
    "GET",
    "/ojs/v1/queues/{name}/events",
    role=Role.VIEW,
    media=_SSE,
    query=("event_types",),
)
async def of_queue(x: Exchange) -> Streaming:
    """Transitions of a queue's jobs as they come."""
    return _stream(x, channel_of(f"queue:{x.queue()}", x.listed("event_types")))


@EVENTS.on(
    "GET",
    "/ojs/v1/events/stream",
    role=Role.VIEW,
    media=_SSE,
    query=("channel", "event_types"),
)
async def of_channel(x: Exchange) -> Streaming:
    """The events of a channel (``all``, ``job:{id}``, ``queue:{name}``) as they come."""
    name = x.request.query("channel", "all")
    return _stream(x, channel_of(name, x.listed("event_types")))


# Streaming ----------------------------------------------------------------------------


def _stream(x: Exchange, channel: Channel, job: Record | None = None) -> Streaming:
    after = x.request.header("last-event-id")[:128]
    own = (("ojs-version", "1.0"), ("x-request-id", x.request_id))
    chunks = sse.kept_alive(_told(x, channel, after, job), every_s=_BEAT_S)
    return Streaming(chunks, headers=(*sse.HEADERS, *own))


async def _told(
    x: Exchange, channel: Channel, after: str, job: Record | None
) -> AsyncGenerator[bytes, None]:
    """The stream itself. A slow reader loses the oldest, and is told how many."""
    async with x.engine.events.follow(channel.wanted, after=after) as feed:
        yield b"retry: %d\n\n" % _RETRY_MS  # whoever has read this misses nothing from now on
        if feed.gap:
            yield _system(x, "system.gap", {"channel": channel.name, "last_event_id": after})
        if job is not None and not after:
            now = await x.engine.info(job.id)
            if isinstance(now, Refusal) or now.is_terminal:
                yield _chunk(_over(job if isinstance(now, Refusal) else now))
                return
        async for message in _messages(x, channel, feed):
            yield message


async def _messages(x: Exchange, channel: Channel, feed: Feed) -> AsyncGenerator[bytes, None]:
    lost = 0
    while not feed.ended:
        event = await feed.next(_BEAT_S)
        if feed.dropped > lost:
            told = {"channel": channel.name, "dropped_count": feed.dropped - lost}
            lost = feed.dropped
            yield _system(x, "system.events_dropped", told)
        message = None if event is None else channel.message(event)
        if message is not None:
            yield _chunk(message)
            if message.is_last and channel.name.startswith("job:"):
                return
    yield _system(x, "server.shutdown", {"reason": "the server is stopping"})


def _chunk(message: Message) -> bytes:
    return sse.event(message.data.decode(), name=message.name, id=message.id)


def _system(x: Exchange, name: str, data: dict[str, Any]) -> bytes:
    told = {**data, "timestamp": instant_text(x.desk.now())}
    return sse.event(msgspec.json.encode(told).decode(), name=name)


def _over(record: Record) -> Message:
    job = record.job
    at = job.completed_at or job.cancelled_at or job.discarded_at
    return state_message(job.id, job.queue, job.type, job.state, at)
