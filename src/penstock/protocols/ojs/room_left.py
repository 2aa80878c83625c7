"""Backpressure: how much may wait in a queue, and what happens beyond that."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from msgspec import Struct

from penstock.protocols.ojs import rules
from penstock.protocols.ojs.peers import Absent, Peers
from penstock.protocols.ojs.queues import Bound
from penstock.protocols.ojs.refusal import Refusal
from penstock.protocols.ojs.shared import Shared

__all__ = ["Pressure", "RoomLeft"]

_RETRY_AFTER_S: Final = 1
_MAX_BLOCK_S: Final = 1.0


class Pressure(Struct, frozen=True):
    """A queue that is filling up: how deep it is, and how deep it may be."""

    depth: int
    bound: int

    @property
    def ratio(self) -> float:
        return self.depth / self.bound


class _Question(Struct, frozen=True):
    queue: str
    count: int
    block_s: float


class _Answer(Struct, frozen=True, kw_only=True):
    refused: bool = False
    refusal: Refusal = Refusal("", "")
    filling: bool = False
    pressure: Pressure = Pressure(0, 0)


class RoomLeft:
    """Asks the exact counters, after everything stored before has reached them."""

    def __init__(self, shared: Shared, peers: Peers) -> None:
        self._peers = peers
        peers.on("room", self._asked)
        self._books = shared.books
        self._queues = shared.queues
        self._drained = shared.drained
        self._keeping = shared.keeping
        self._clock = shared.clock
        self._dice = shared.dice

    async def for_more(self, queue: str, count: int, block_s: float) -> Pressure | Refusal | None:
        """Whether ``count`` more jobs may wait in ``queue``; ``None``: plenty of room."""
        bound = self._queues.config(queue).bound
        if bound is None or not bound.max_depth:
            return None
        if not self._books.follows:
            return await self._ask(queue, count, block_s)
        await self._books.barrier()
        depth = self._books.index.depth(queue)
        if depth + count > bound.max_depth:
            if bound.strategy == "drop_oldest" and count <= bound.max_depth:
                await self._drop_oldest(queue, depth + count - bound.max_depth)
            elif bound.strategy != "block" or not await self._waited(queue, count, bound, block_s):
                return _full(queue, self._books.index.depth(queue), bound)
            depth = self._books.index.depth(queue)
        depth += count
        if depth >= bound.warning_threshold * bound.max_depth:
            return Pressure(depth, bound.max_depth)
        return None

    async def _ask(self, queue: str, count: int, block_s: float) -> Pressure | Refusal | None:
        """Who keeps no index asks an instance that does; where there is none, nobody counts."""
        wanted = _Question(queue, count, min(block_s, _MAX_BLOCK_S))
        try:
            answer: _Answer = await self._peers.ask("any", "room", wanted, kind=_Answer)
        except Absent:
            return None
        if answer.refused:
            return answer.refusal
        return answer.pressure if answer.filling else None

    async def _asked(self, body: bytes) -> _Answer:
        wanted = msgspec.json.decode(body, type=_Question)
        found = await self.for_more(wanted.queue, wanted.count, wanted.block_s)
        if isinstance(found, Refusal):
            return _Answer(refused=True, refusal=found)
        return _Answer() if found is None else _Answer(filling=True, pressure=found)

    async def _waited(self, queue: str, count: int, bound: Bound, block_s: float) -> bool:
        end = asyncio.get_running_loop().time() + block_s
        with self._drained.open((queue,)) as ear:
            while self._books.index.depth(queue) + count > bound.max_depth:
                left = end - asyncio.get_running_loop().time()
                if left <= 0:
                    return False
                await ear.wait(left)
        return True

    async def _drop_oldest(self, queue: str, count: int) -> None:
        for job_id in self._books.index.oldest(queue, "available", count):
            await self._books.store.change(
                job_id, lambda r: rules.drop(r, self._clock(), self._dice, self._keeping(r))
            )


def _full(queue: str, depth: int, bound: Bound) -> Refusal:
    return Refusal(
        "QUEUE_FULL",
        f"Queue {queue} is full: {depth} jobs wait, {bound.max_depth} may",
        {"queue": queue, "depth": depth, "bound": bound.max_depth, "strategy": bound.strategy},
        retry_after_s=_RETRY_AFTER_S,
    )
