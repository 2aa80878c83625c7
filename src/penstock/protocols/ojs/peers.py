"""Peers: which other instances there are, and what one may ask of another.

Presence is a row that each instance renews. A question goes to one instance by name, or to
any that follows the records; nobody there is an answer too, and comes at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from penstock.broker.errors import LinkError, NoResponders
from penstock.broker.link import Subscription
from penstock.core.errors import PenstockError
from penstock.protocols.ojs.refusal import Refused
from penstock.protocols.ojs.shared import Shared
from penstock.protocols.ojs.table import Table

__all__ = ["Absent", "Peers"]

_log = logging.getLogger("penstock.ojs")
_PREFIX: Final = "ojs.engine."
_ANY: Final = "any"
_RENEW_S: Final = 10.0
_GONE_MS: Final = 35_000
_WAIT_S: Final = 2.0

Answerer = Callable[[bytes], Awaitable[Any]]


class Instance(Struct, frozen=True):
    name: str
    seen_ms: int


class Absent(Exception):
    """Nobody of that name answers."""


class Peers:
    def __init__(self, shared: Shared, *, answers: bool) -> None:
        self._shared = shared
        self._link = shared.room.link
        self._answers = answers
        self._table: Table[Instance] = Table(shared.room.workers, "engine", Instance)
        self._answerers: dict[str, Answerer] = {}
        self._subscriptions: list[Subscription] = []
        self._errands: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None

    def on(self, question: str, answerer: Answerer) -> None:
        """Answer a question with what ``answerer`` makes of its body."""
        self._answerers[question] = answerer

    async def start(self) -> None:
        if self._answers:
            mine = f"{_PREFIX}{self._shared.name}.*"
            self._subscriptions.append(await self._link.subscribe(mine, self._asked))
            anyone = f"{_PREFIX}{_ANY}.*"
            self._subscriptions.append(
                await self._link.subscribe(anyone, self._asked, queue="ojs-engine")
            )
        await self._table.start()
        await self._announce()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="ojs:presence")

    async def stop(self) -> None:
        """Leave. Safe to repeat."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            with contextlib.suppress(PenstockError):
                await self._table.remove(self._shared.name)
        for subscription in self._subscriptions:
            with contextlib.suppress(LinkError):
                await subscription.unsubscribe()
        self._subscriptions.clear()
        for errand in list(self._errands):
            errand.cancel()
        await self._table.stop()

    @property
    def alone(self) -> bool:
        """Whether no other instance has been heard of lately."""
        if len(self._table) < 2 and self._shared.name in self._table:
            return True
        since = self._shared.now_ms - _GONE_MS
        return not any(
            row.seen_ms >= since for name, row in self._table.rows() if name != self._shared.name
        )

    def others(self) -> list[str]:
        return [name for name in self._table if name != self._shared.name]

    async def ask(self, name: str, question: str, body: Any, *, kind: Any) -> Any:
        """Ask one instance; ``any`` is whoever follows the records. Raises `Absent` when nobody
        is there, and `Refused` when the answer is that, or does not come."""
        data = msgspec.json.encode(body)
        subject = f"{_PREFIX}{name}.{question}".encode()
        try:
            reply = await self._link.request(subject, data, timeout=_WAIT_S)
        except NoResponders as error:
            raise Absent(name) from error
        except LinkError as error:
            raise Absent(f"{name}: {error.message}") from error
        return msgspec.json.decode(reply.payload, type=kind)

    # Inside -----------------------------------------------------------------------------

    def _asked(
        self, subject: bytes, reply: bytes | None, _headers: bytes | None, payload: bytes
    ) -> None:
        answerer = self._answerers.get(subject.rpartition(b".")[2].decode())
        if answerer is None or reply is None:
            return
        errand = asyncio.get_running_loop().create_task(
            self._answer(answerer, reply, payload), name="ojs:answer"
        )
        self._errands.add(errand)
        errand.add_done_callback(self._errands.discard)

    async def _answer(self, answerer: Answerer, reply: bytes, payload: bytes) -> None:
        try:
            answer = await answerer(payload)
            self._link.publish(reply, msgspec.json.encode(answer))
        except (Refused, PenstockError, msgspec.DecodeError) as error:
            _log.debug("a question of another instance was not answered: %s", error)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_S)
            try:
                await self._announce()
            except PenstockError as error:
                _log.debug("presence was not renewed: %s", error.message)

    async def _announce(self) -> None:
        row = Instance(self._shared.name, self._shared.now_ms)
        await self._table.put(self._shared.name, row)
