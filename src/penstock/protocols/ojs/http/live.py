"""The WebSocket: one connection, any number of channels, in the subprotocol ``ojs.v1``."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

import msgspec

from penstock.protocols.ojs.fields import Fields, object_of
from penstock.protocols.ojs.http.channels import Channel, channel_of
from penstock.protocols.ojs.http.desk import Desk
from penstock.protocols.ojs.instants import instant_text
from penstock.protocols.ojs.refusal import Refused
from penstock.web.message import Socket

__all__ = ["Conversation"]

_MAX_CHANNELS: Final = 100
_WAIT_S: Final = 30.0


class Conversation:
    """What one client says and hears, until it hangs up."""

    def __init__(self, desk: Desk, socket: Socket) -> None:
        self._desk = desk
        self._socket = socket
        self._after = ""
        self._listening: dict[str, asyncio.Task[None]] = {}

    async def hold(self) -> None:
        try:
            while (said := await self._socket.receive()) is not None:
                await self._hear(said.encode() if isinstance(said, str) else said)
        finally:
            for task in self._listening.values():
                task.cancel()
            await asyncio.gather(*self._listening.values(), return_exceptions=True)

    async def _hear(self, said: bytes) -> None:
        try:
            fields = Fields(object_of(said))
            match fields.choice("action", ("subscribe", "unsubscribe", "resume", "ping")):
                case "subscribe":
                    await self._subscribe(fields)
                case "unsubscribe":
                    await self._unsubscribe(fields.text("channel") or "")
                case "resume":
                    self._after = fields.text("last_event_id", max_chars=128) or ""
                case "ping":
                    await self._say(type="pong")
                case _:
                    raise fields.bad("action", "is required")
        except Refused as error:
            refusal = error.refusal
            await self._say(type="error", code=refusal.code, message=refusal.message)

    async def _subscribe(self, fields: Fields) -> None:
        name = fields.text("channel", max_chars=200)
        if name is None:
            raise fields.bad("channel", "is required")
        channel = channel_of(name, fields.texts("event_types") or ())
        inner = fields.fields("filter")
        if inner is not None and not channel.transitions:
            wanted = msgspec.structs.replace(
                channel.wanted,
                types=inner.texts("event_types") or (),
                queues=inner.texts("queues") or (),
                job_types=inner.texts("job_types") or (),
            )
            channel = msgspec.structs.replace(channel, wanted=wanted)
        if len(self._listening) >= _MAX_CHANNELS and name not in self._listening:
            raise fields.bad("channel", f"is one more than the {_MAX_CHANNELS} that are allowed")
        await self._end(name)
        begun = asyncio.Event()
        task = asyncio.create_task(self._listen(channel, begun), name="ojs:channel")
        self._listening[name] = task
        waiting = asyncio.ensure_future(begun.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()

    async def _unsubscribe(self, name: str) -> None:
        await self._end(name)
        await self._say(type="unsubscribed", channel=name)

    async def _end(self, name: str) -> None:
        task = self._listening.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _listen(self, channel: Channel, begun: asyncio.Event) -> None:
        lost = 0
        with suppress(ConnectionError):
            async with self._desk.engine.events.follow(channel.wanted, after=self._after) as feed:
                await self._say(type="subscribed", channel=channel.name)
                if feed.gap:
                    await self._say(type="error", code="unknown_event_id", channel=channel.name)
                begun.set()
                while not feed.ended:
                    event = await feed.next(_WAIT_S)
                    if feed.dropped > lost:
                        count, lost = feed.dropped - lost, feed.dropped
                        await self._say(type="warning", channel=channel.name, dropped_count=count)
                    message = None if event is None else channel.message(event)
                    if message is not None and event is not None:
                        await self._say(
                            type="event",
                            channel=channel.name,
                            event=message.name,
                            data=msgspec.Raw(message.data),
                            id=message.id,
                            timestamp=event.time,
                        )

    async def _say(self, **told: Any) -> None:
        told.setdefault("timestamp", instant_text(self._desk.now()))
        await self._socket.send(msgspec.json.encode(told).decode())
