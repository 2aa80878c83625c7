"""Orders: of several instances, one says for each queue which job is next.

Instances that all took the head of the same order would lose most of their claims to each other.
So each queue belongs to a shard, each shard to the instance that holds its lease, and others ask
that one. It only names jobs: the claim stays with the asker, and the compare-and-set decides. So
without an owner, with two for a moment, or with one that does not answer, nothing is wrong but
some effort wasted, and order is by each instance's own view.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Final
from zlib import crc32

import msgspec

from penstock.broker.ownership import Ownership
from penstock.protocols.ojs.handing import Handing, Pick
from penstock.protocols.ojs.peers import Absent, Peers
from penstock.protocols.ojs.shared import Shared

__all__ = ["Orders"]

_SHARDS: Final = 8
_TERM: Final = timedelta(seconds=3)
_KEPT_S: Final = 2.0  # a job that was named and not claimed is offered again after that
_FIRST_S: Final = 0.25


class Orders:
    def __init__(self, shared: Shared, handing: Handing, peers: Peers) -> None:
        self._shared = shared
        self._handing = handing
        self._peers = peers
        self._shards: dict[int, Ownership] = {}
        peers.on("pick", self._asked)
        peers.on("sync", self._sync)

    async def stop(self) -> None:
        shards, self._shards = self._shards, {}
        await asyncio.gather(*(shard.stop() for shard in shards.values()))

    async def pick(self, wanted: Pick) -> list[str]:
        """The next jobs of a queue, as its owner sees it."""
        if self._peers.alone:
            return await self._handing.pick_here(wanted)
        shard = await self._shard_of(wanted.queue)
        owner = shard.owner
        if shard.owned or owner is None or owner == self._shared.name:
            await self._shared.books.barrier()
            return await self._handing.pick_here(wanted)
        try:
            found: list[str] = await self._peers.ask(owner, "pick", wanted, kind=list[str])
        except Absent:
            await self._shared.books.barrier()
            return await self._handing.pick_here(wanted)
        return found

    async def sync(self) -> None:
        """Return when every other instance has seen what was written to queue settings before:
        what a pause promises holds everywhere."""
        await asyncio.gather(*(self._sync_one(name) for name in self._peers.others()))

    async def _sync_one(self, name: str) -> None:
        with contextlib.suppress(Absent):  # it is gone, or a producer that hands nothing out
            await self._peers.ask(name, "sync", None, kind=bool)

    async def _sync(self, _body: bytes) -> bool:
        await self._shared.queues.table.barrier()
        return True

    async def _asked(self, body: bytes) -> list[str]:
        """Another instance asks for our order."""
        wanted = msgspec.json.decode(body, type=Pick)
        await self._shared.books.barrier()
        picked = await self._handing.pick_here(wanted)
        if picked:
            asyncio.get_running_loop().call_later(_KEPT_S, self._offer_again, picked)
        return picked

    def _offer_again(self, picked: list[str]) -> None:
        for job_id in picked:
            self._shared.books.index.release(job_id)

    async def _shard_of(self, queue: str) -> Ownership:
        number = crc32(queue.encode()) % _SHARDS
        shard = self._shards.get(number)
        if shard is None:
            shard = Ownership(
                self._shared.room.queues, f"owner.shard-{number}", self._shared.name, _TERM
            )
            self._shards[number] = shard
            await shard.start()
            end = asyncio.get_running_loop().time() + _FIRST_S
            while shard.owner is None and asyncio.get_running_loop().time() < end:
                await asyncio.sleep(0.005)
        return shard
