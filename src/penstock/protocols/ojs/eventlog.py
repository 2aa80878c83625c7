"""Reading events: pages for who polls, a live feed for who listens.

The newest are kept in memory from the first question on; what is older is read from the stream.
A listener that does not keep up loses the oldest it has not taken, and is told how many.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Struct

from penstock.broker.errors import LinkError
from penstock.broker.follower import Follower
from penstock.broker.mirror import Mirror, MirrorBehind
from penstock.broker.puller import Message
from penstock.broker.streams import ApiError
from penstock.protocols.ojs.names import EVENT_SUBJECTS, event_subject
from penstock.protocols.ojs.room import EVENTS
from penstock.protocols.ojs.shared import Shared
from penstock.protocols.ojs.store import unavailable
from penstock.protocols.ojs.told import Event

__all__ = ["EventFilter", "EventLog", "EventPage", "Feed"]

_KEPT: Final = 10_000
_MAX_BEHIND: Final = 1_000
_event: Final = msgspec.json.Decoder(Event)


class EventFilter(Struct, frozen=True, kw_only=True):
    """Empty is any; ``types`` may end in ``.*``; the members are joined by *and*."""

    types: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    job_types: tuple[str, ...] = ()
    subject: str = ""

    def admits(self, event: Event) -> bool:
        data: dict[str, Any] = event.data
        return (
            (not self.types or any(_matches(event.type, t) for t in self.types))
            and (not self.queues or data.get("queue") in self.queues)
            and (not self.job_types or data.get("job_type") in self.job_types)
            and (not self.subject or event.subject == self.subject)
        )


class EventPage(Struct, frozen=True):
    """Oldest first; ``cursor`` is the id to ask after next."""

    events: list[Event]
    cursor: str
    has_more: bool


class EventLog:
    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._ring: deque[tuple[int, bytes]] = deque(maxlen=_KEPT)
        self._places: dict[str, int] = {}
        self._feeds: set[Feed] = set()
        self._mirror: Mirror[Message] | None = None
        self._opening = asyncio.Lock()

    async def stop(self) -> None:
        for feed in list(self._feeds):
            feed.end()
        if self._mirror is not None:
            await self._mirror.stop()

    async def page(self, wanted: EventFilter, *, after: str = "", limit: int = 100) -> EventPage:
        """Events after the one with that id; from the oldest kept if there is none such."""
        if not self._shared.options.events:
            return EventPage([], after, False)
        await self._ready()
        start = self._places.get(after, 0)
        first = self._ring[0][0] if self._ring else 0
        if start >= first - 1 > 0 or not self._ring:
            found = self._from_ring(wanted, start, limit + 1)
        else:
            found = await self._from_stream(wanted, after, limit + 1)
        more = len(found) > limit
        events = found[:limit]
        return EventPage(events, events[-1].id if events else after, more)

    @asynccontextmanager
    async def follow(self, wanted: EventFilter, *, after: str = "") -> AsyncIterator[Feed]:
        """A feed of what happens from now on, after a replay of what came after ``after`` if
        that is still at hand (`Feed.gap` says if not)."""
        await self._ready()
        feed = Feed(wanted)
        self._feeds.add(feed)
        if after:
            start = self._places.get(after)
            feed.gap = start is None
            if start is not None:
                for event in self._from_ring(wanted, start, _MAX_BEHIND):
                    feed.put(event)
        try:
            yield feed
        finally:
            self._feeds.discard(feed)

    # Inside -----------------------------------------------------------------------------

    async def _ready(self) -> None:
        async with self._opening:
            if self._mirror is None:
                room = self._shared.room
                try:
                    info = await room.js.stream_info(EVENTS)
                    start = max(info.state.last_seq - _KEPT + 1, 1)
                    mirror = Mirror.of_stream(
                        room.link, EVENTS, self._apply, start=start, reset=self._clear
                    )
                    await mirror.start()
                except (LinkError, ApiError) as error:
                    raise unavailable(error) from error
                self._mirror = mirror
        try:
            await self._mirror.barrier(2.0)
        except MirrorBehind as error:
            raise unavailable(error) from error

    def _apply(self, message: Message) -> None:
        event_id = _id_of(message.payload)
        if not event_id:
            return
        if len(self._ring) == _KEPT:
            self._places.pop(_id_of(self._ring[0][1]), None)
        self._ring.append((message.stream_seq, message.payload))
        self._places[event_id] = message.stream_seq
        if self._feeds:
            event = _event.decode(message.payload)
            for feed in list(self._feeds):
                if feed.wanted.admits(event):
                    feed.put(event)

    def _clear(self) -> None:
        self._ring.clear()
        self._places.clear()

    def _from_ring(self, wanted: EventFilter, start: int, most: int) -> list[Event]:
        later = (_event.decode(payload) for seq, payload in self._ring if seq > start)
        return list(islice(filter(wanted.admits, later), most))

    async def _from_stream(self, wanted: EventFilter, after: str, most: int) -> list[Event]:
        """Read the stream from its start; of an id that is not met, everything is after it."""
        room = self._shared.room
        exact = wanted.types and not after and not any(t.endswith("*") for t in wanted.types)
        subjects = [event_subject(t) for t in wanted.types] if exact else [EVENT_SUBJECTS]
        follower = Follower(room.link, EVENTS, filters=subjects)
        found: list[Event] = []
        met = False
        try:
            await follower.open()
            while not follower.caught_up or not found:
                batch = await follower.fetch(1000, 0.5)
                for message in batch:
                    event = _event.decode(message.payload)
                    if event.id == after and not met:
                        met = True
                        found.clear()
                    elif wanted.admits(event):
                        found.append(event)
                if not batch or (len(found) >= most and (met or not after)):
                    break
        except (LinkError, ApiError) as error:
            raise unavailable(error) from error
        finally:
            await follower.stop()
        return found[:most]


class Feed:
    """Events as they come, for one listener. Iterate over it; `dropped` counts what was lost."""

    def __init__(self, wanted: EventFilter) -> None:
        self.wanted = wanted
        self.dropped = 0
        self.gap = False
        self._events: deque[Event] = deque()
        self._some = asyncio.Event()
        self._ended = False

    def put(self, event: Event) -> None:
        if len(self._events) >= _MAX_BEHIND:
            self._events.popleft()
            self.dropped += 1
        self._events.append(event)
        self._some.set()

    def end(self) -> None:
        self._ended = True
        self._some.set()

    async def next(self, within_s: float) -> Event | None:
        """The next event, or ``None`` when none came in time or the feed has ended."""
        if not self._events and not self._ended:
            self._some.clear()
            try:
                async with asyncio.timeout(within_s):
                    await self._some.wait()
            except TimeoutError:
                return None
        return self._events.popleft() if self._events else None

    @property
    def ended(self) -> bool:
        return self._ended and not self._events


class _Id(Struct):
    id: str = ""


_ids: Final[Callable[[bytes], _Id]] = msgspec.json.Decoder(_Id).decode


def _id_of(payload: bytes) -> str:
    try:
        return _ids(payload).id
    except msgspec.DecodeError:
        return ""


def _matches(kind: str, wanted: str) -> bool:
    return kind.startswith(wanted[:-1]) if wanted.endswith("*") else kind == wanted
