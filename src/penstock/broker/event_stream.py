"""Lifecycle events on NATS: published without waiting, kept in `PENSTOCK_EVENTS`.

Emitting costs a microsecond or two and never fails the work: over its bound the sink
drops events and counts them. A drain flushes with acks, so that what a worker said last
is not lost with it.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from penstock.broker.errors import LinkError
from penstock.broker.streams import JetStream, StreamConfig
from penstock.core.errors import PenstockError
from penstock.core.events import STREAM, SUBJECTS, Event, EventKind
from penstock.core.invocation import PROTOCOLS

if TYPE_CHECKING:
    from penstock.broker.link import Link

__all__ = ["EventStream"]

_log = logging.getLogger("penstock.events")
_KEPT_FOR = timedelta(days=7)
_MAX_BYTES = 2 * 1024**3
_SUBJECTS = {
    (protocol, kind): f"penstock.event.{protocol}.{kind.value}".encode()
    for protocol in PROTOCOLS
    for kind in EventKind
}


class EventStream:
    """The sink that publishes. ``dropped`` counts what could not be sent."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._encode = msgspec.json.Encoder().encode
        self.dropped = 0

    @classmethod
    async def open(cls, link: Link, *, replicas: int = 1) -> EventStream:
        """Make the stream if it is absent; an existing one stays as its owner made it."""
        config = StreamConfig(
            name=STREAM,
            subjects=[SUBJECTS],
            retention="limits",
            discard="old",
            max_age=_KEPT_FOR,
            max_bytes=_MAX_BYTES,
            num_replicas=replicas,
        )
        try:
            await JetStream(link).ensure_stream(config)
        except PenstockError as error:
            _log.warning("lifecycle events will not be kept: %s", error)
        return cls(link)

    def emit(self, event: Event) -> None:
        try:
            self._link.publish(_SUBJECTS[event.protocol, event.kind], self._encode(event))
        except (LinkError, msgspec.MsgspecError, TypeError, ValueError):
            self.dropped += 1

    async def flush(self) -> None:
        """Wait until the server has read everything sent so far."""
        try:
            await self._link.flush(timeout=2.0)
        except LinkError as error:
            _log.warning("some lifecycle events may be lost: %s", error)
