"""Handing out: which jobs a fetch gets, and making them the caller's.

Queues are drained from left to right; inside a queue the order is by priority, then by enqueueing.
No queue is called empty before this instance has seen all that was stored when the fetch came.
Each job is claimed by a compare-and-set of its own: of two who want it, one gets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from penstock.core.errors import PenstockError
from penstock.protocols.ojs import rules
from penstock.protocols.ojs.entry import Entry
from penstock.protocols.ojs.instants import in_ms, of_ms
from penstock.protocols.ojs.queues import QueueConfig
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.refusal import Refusal, wrong_state
from penstock.protocols.ojs.requests import FetchRequest, Holding
from penstock.protocols.ojs.shared import Shared
from penstock.protocols.ojs.slots import Granted, policy_of_queue, queue_key
from penstock.protocols.ojs.store import Found
from penstock.protocols.ojs.throttle import RateLimit

__all__ = ["Handing", "Pick"]

_log = logging.getLogger("penstock.ojs")
_LOOK_AGAIN: Final = 5.0  # a waiting fetch asks again this often even if no bell rings


class Pick(Struct, frozen=True, kw_only=True):
    """What to pick from a queue, as one instance may ask another."""

    queue: str
    most: int
    tenant: str = ""
    types: tuple[str, ...] = ()
    without_keys: tuple[str, ...] = ()
    without_ids: tuple[str, ...] = ()


Picker = Callable[[Pick], Awaitable[list[str]]]


class _Round(Struct):
    """One fetch while it goes on: what it has, and what it need not try again."""

    asked: FetchRequest
    tenant: str
    got: list[Record] = []
    blocked: set[str] = set()
    passed: set[str] = set()
    again_ms: int = 0
    fresh: bool = False

    @property
    def left(self) -> int:
        return self.asked.count - len(self.got)


class Handing:
    """Fetches of one instance."""

    def __init__(self, shared: Shared, wake_up_of: Callable[[str], str]) -> None:
        self._books = shared.books
        self._queues = shared.queues
        self._slots = shared.slots
        self._bells = shared.bells
        self._options = shared.options
        self._keeping = shared.keeping
        self._clock = shared.clock
        self._dice = shared.dice
        self._wake_up_of = wake_up_of
        self._errands: set[asyncio.Task[None]] = set()
        self.pick: Picker = self.pick_here
        self.stopped = False

    async def fetch(
        self, asked: FetchRequest, tenant: str = "", until: Callable[[], bool] = lambda: False
    ) -> list[Record]:
        """Up to ``count`` jobs, claimed for the caller; waits up to ``wait_ms`` for the first.

        A waiting fetch ends early when a bell rings and ``until`` says so. When it is cancelled,
        what was being claimed for it is given back.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + asked.wait_ms / 1000
        with self._bells.open(asked.queues) as ear:
            while True:
                turn = _Round(asked, tenant)
                await self._whole_round(turn)
                left = end - loop.time()
                if turn.got or left <= 0 or self.stopped or until():
                    return turn.got
                pause = min(left, _LOOK_AGAIN)
                if turn.again_ms:
                    pause = min(pause, (turn.again_ms - in_ms(self._clock())) / 1000)
                await ear.wait(max(pause, 0.005))
                if until():
                    return []

    async def pick_here(self, wanted: Pick) -> list[str]:
        """The next jobs of a queue as this instance knows it; they are not offered to others
        until they change, or are released."""
        tenant, types = wanted.tenant, wanted.types
        keys, ids = wanted.without_keys, wanted.without_ids

        def admits(entry: Entry) -> bool:
            return (
                (not tenant or entry.tenant == tenant)
                and (not types or entry.type in types)
                and not (keys and entry.limit_key and entry.limit_key in keys)
                and not (ids and entry.id in ids)
            )

        plain = not (tenant or types or keys or ids)
        chosen = self._books.index.reserve(wanted.queue, wanted.most, None if plain else admits)
        return [entry.id for entry in chosen]

    async def give_back(self, records: Sequence[Record]) -> None:
        """Nobody will run these: available again, at no cost, if they are still held so."""
        await asyncio.gather(*(self._give_back(record) for record in records))

    # Inside -------------------------------------------------------------------------------

    async def _whole_round(self, turn: _Round) -> None:
        """One round that is not broken off between a claim and its answer."""
        going = asyncio.get_running_loop().create_task(self._go_round(turn), name="ojs:fetch")
        try:
            await asyncio.shield(going)
        except asyncio.CancelledError:
            errand = asyncio.get_running_loop().create_task(self._undo(going, turn))
            self._errands.add(errand)
            errand.add_done_callback(self._errands.discard)
            raise

    async def _undo(self, going: asyncio.Task[None], turn: _Round) -> None:
        """The caller of a fetch went away: let its round end, and give back what it brought."""
        with contextlib.suppress(PenstockError):
            await going
        with contextlib.suppress(PenstockError):
            await self.give_back(turn.got)

    async def _give_back(self, record: Record) -> None:
        fence = record.held.fence if record.held is not None else ""

        def decide(now: Record) -> Record | Refusal:
            no = rules.not_held(now, "give back", Holding(fence=fence))
            return no or rules.give_back(now, self._clock(), self._dice)

        await self._books.store.change(record.id, decide)

    async def _go_round(self, turn: _Round) -> None:
        for queue in turn.asked.queues:
            if self._queues.is_paused(queue):
                continue
            while turn.left > 0:
                picked = await self._next_of(queue, turn)
                if not picked:
                    break
                await self._claim_all(queue, picked, turn)
                if queue_key(queue) in turn.blocked:
                    break
            if turn.left <= 0:
                return

    async def _next_of(self, queue: str, turn: _Round) -> list[str]:
        wanted = Pick(
            queue=queue,
            most=turn.left,
            tenant=turn.tenant,
            types=turn.asked.types,
            without_keys=tuple(turn.blocked),
            without_ids=tuple(turn.passed),
        )
        picked = await self.pick(wanted)
        if not picked and not turn.fresh:
            await self._books.barrier()
            turn.fresh = True
            picked = await self.pick(wanted)
        return picked

    async def _claim_all(self, queue: str, picked: list[str], turn: _Round) -> None:
        config = self._queues.config(queue)
        try:
            allowed = await self._allowed(queue, config, picked, turn)
            done = await asyncio.gather(
                *(self._claim(job_id, config, turn.asked) for job_id in allowed),
                return_exceptions=True,
            )
        except BaseException:
            for job_id in picked:
                self._books.index.release(job_id)
            raise
        fault: BaseException | None = None
        claimed: set[str] = set()
        for job_id, found in zip(allowed, done, strict=True):
            if isinstance(found, Found):
                claimed.add(job_id)
                turn.got.append(found.record)
            elif isinstance(found, BaseException):
                fault = found
        for job_id in picked:
            if job_id not in claimed:
                turn.passed.add(job_id)
                self._books.index.release(job_id)
        if fault is not None and not turn.got:
            raise fault

    async def _claim(
        self, job_id: str, config: QueueConfig, asked: FetchRequest
    ) -> Found | Refusal:
        def decide(record: Record) -> Record | Refusal:
            if asked.runtime is not None and not _fits(record, asked.runtime):
                return wrong_state("fetch", record.id, "for another runtime", "available")
            return rules.claim(
                record,
                self._clock(),
                self._dice,
                self._options,
                worker=asked.worker,
                term=self._term(record, config, asked),
                queue_timeout=timedelta(milliseconds=config.timeout_ms),
                wake_up=self._wake_up_of(record.id),
            )

        return await self._books.store.change(job_id, decide)

    def _term(self, record: Record, config: QueueConfig, asked: FetchRequest) -> timedelta | None:
        """How long the caller may be silent: as it says, else as the job, the queue, or (for
        who promises to send heartbeats) the first term says."""
        if asked.visibility_ms:
            return timedelta(milliseconds=asked.visibility_ms)
        if asked.beats:
            return self._options.first_term
        if record.job.visibility_timeout_ms or not config.visibility_ms:
            return None
        return timedelta(milliseconds=config.visibility_ms)

    # Limits -------------------------------------------------------------------------------

    async def _allowed(
        self, queue: str, config: QueueConfig, picked: list[str], turn: _Round
    ) -> list[str]:
        """Those of ``picked`` that every limit lets start now; slots are taken for them."""
        entries = [e for job_id in picked if (e := self._books.index.get(job_id)) is not None]
        if len(entries) < len(picked):  # another instance picked what has not reached us yet
            found = await self._books.store.read_many(
                job_id for job_id in picked if job_id not in self._books.index
            )
            for one in found.values():
                self._books.heard(one.record, one.revision)
            entries = [e for job_id in picked if (e := self._books.index.get(job_id)) is not None]
        by_key: dict[str, list[Entry]] = {}
        for entry in entries:
            if entry.limit_key:
                by_key.setdefault(entry.limit_key, []).append(entry)
        denied: set[str] = set()
        for key, members in by_key.items():
            granted = await self._take(key, members, turn)
            denied |= {e.id for e in members} - set(granted.ids)
        chosen = [entry for entry in entries if entry.id not in denied]
        policy = self._policy_of(queue, config)
        if policy is None or not chosen:
            return [entry.id for entry in chosen]
        granted = await self._take(queue_key(queue), chosen, turn, policy)
        lost = [entry for entry in chosen if entry.id not in granted.ids]
        for key in {entry.limit_key for entry in lost if entry.limit_key}:
            await self._slots.give_back(key, [e.id for e in lost if e.limit_key == key])
        return list(granted.ids)

    async def _take(
        self, key: str, members: list[Entry], turn: _Round, policy: RateLimit | None = None
    ) -> Granted:
        now_ms = in_ms(self._clock())
        asked = [(entry.id, entry.attempt + 1) for entry in members]
        granted = await self._slots.take(key, asked, now_ms, policy)
        if len(granted.ids) < len(asked):
            turn.blocked.add(key)
            if granted.again_ms:
                turn.again_ms = min(turn.again_ms or granted.again_ms, granted.again_ms)
            await self._limited([e for e in members if e.id not in granted.ids], granted.again_ms)
        return granted

    async def _limited(self, entries: list[Entry], again_ms: int) -> None:
        """Jobs that do not want to wait in line for their limit: put off, or dropped."""
        for entry in entries:
            found = self._books.known(entry.id) or await self._books.store.read(entry.id)
            limit = found.record.limit if found is not None else None
            if limit is None or limit.on_limit == "wait":
                continue
            at = of_ms(again_ms) if again_ms else self._clock() + timedelta(seconds=1)
            drops = limit.on_limit == "drop"

            def decide(record: Record, at: datetime = at, drops: bool = drops) -> Record | Refusal:
                now = self._clock()
                return rules.set_aside(
                    record, at, now, self._dice, self._keeping(record), drops=drops
                )

            await self._books.store.change(entry.id, decide)

    def _policy_of(self, queue: str, config: QueueConfig) -> RateLimit | None:
        own = self._queues.of(queue)
        per_second = own.max_per_second if own is not None else None
        return policy_of_queue(
            per_second, config.rate_limit, config.rate_period_s, config.concurrency
        )


def _fits(record: Record, runtime: Raw) -> bool:
    """Whether a worker of this runtime may run the job."""
    if b"ojs.ext_runtime" not in bytes(record.job.meta):
        return True
    needs: Any = msgspec.json.decode(record.job.meta).get("ojs.ext_runtime")
    has: Any = msgspec.json.decode(runtime)
    if not isinstance(needs, dict):
        return True
    if needs.get("name") not in (None, has.get("name")):
        return False
    wanted, offered = needs.get("tags") or [], has.get("tags") or []
    return all(tag in offered for tag in wanted)
