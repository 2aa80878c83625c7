"""The reconciler: finishes what somebody began and did not live to finish.

Nothing here is needed while all goes well. Every deed is a compare-and-set or create-only, so that
any number of instances may do it, and doing it twice does no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import timedelta
from typing import Final

from penstock.broker.errors import LinkClosed
from penstock.core.errors import PenstockError
from penstock.protocols.ojs.entry import Entry
from penstock.protocols.ojs.flows import Flows
from penstock.protocols.ojs.intake import Intake
from penstock.protocols.ojs.names import TERMINAL
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.refusal import Refusal, wrong_state
from penstock.protocols.ojs.shared import Shared
from penstock.protocols.ojs.steps import published, rewritten
from penstock.protocols.ojs.wakeups import WakeUps
from penstock.protocols.ojs.workers import Workers

__all__ = ["Reconciler"]

_log = logging.getLogger("penstock.ojs")
_TICK_S: Final = 1.0
_MOST: Final = 1_000


class Reconciler:
    def __init__(
        self,
        shared: Shared,
        intake: Intake,
        flows: Flows,
        workers: Workers,
        wake_ups: WakeUps,
    ) -> None:
        self._wake_ups = wake_ups
        self._shared = shared
        self._intake = intake
        self._flows = flows
        self._workers = workers
        self._replaced: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="ojs:reconciler")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def heard(self, job_id: str, _entry: Entry | None, record: Record | None) -> None:
        """A job that replaces another is visible: the other one counts as cancelled."""
        if record is not None and record.unique_replaces and not record.is_terminal:
            self._replaced[job_id] = record.unique_replaces

    async def _run(self) -> None:
        patience_s = self._shared.options.patience.total_seconds()
        every_s = max(patience_s / 4, 0.05)
        next_round = 0.0
        loop = asyncio.get_running_loop()
        while True:
            try:
                await self._look_at_workers()
                if loop.time() >= next_round:
                    next_round = loop.time() + every_s
                    await self.round()
            except LinkClosed:
                return
            except PenstockError as error:
                _log.warning("the reconciler stopped for a moment: %s", error.message)
            await asyncio.sleep(min(_TICK_S, every_s))

    async def round(self) -> None:
        """Look at everything that may have been left unfinished."""
        await self._settle_staged()
        await self._retire_replaced()
        await self._tidy_verdicts()
        await self._flows.advance_all()
        await self._flows.forget_old()
        await self._wake_ups.republish()

    async def _look_at_workers(self) -> None:
        for row in self._workers.silent():
            _log.warning("worker %s fell silent with %d jobs", row.id, len(row.job_ids))
            await self._workers.take_back(row)

    async def _settle_staged(self) -> None:
        """Jobs that were staged and neither shown nor withdrawn: forward if they hold their
        lock, away if not."""
        shared = self._shared
        before_ms = shared.now_ms - round(shared.options.patience / timedelta(milliseconds=1))
        old = [e for e in shared.books.index.staged() if e.created_ms < before_ms][:_MOST]
        for entry in old:
            if entry.txn:
                await self._settle_member(entry)
            elif await shared.locks.names(entry.unique_key, entry.id):
                await self._show(entry.id)
            else:
                await self._remove(entry.id)

    async def _settle_member(self, entry: Entry) -> None:
        """A batch that was never committed never will be: once the verdict says so, its jobs
        go. A late commit fails on that verdict."""
        store = self._shared.books.store
        aborted = await store.decide_txn(entry.txn, committed=False, at_ms=self._shared.now_ms)
        if aborted:
            await self._remove(entry.id)
        else:
            self._shared.books.committed(entry.txn, self._shared.now_ms)

    async def _show(self, job_id: str) -> None:
        lock = self._shared.books.store
        found = await lock.read(job_id)
        if found is None or not found.record.staged:
            return
        named, _ = await self._shared.locks.read(found.record.unique_key)
        replaces = named.before if named is not None and named.job_id == job_id else ""

        def decide(record: Record) -> Record | Refusal:
            if not record.staged:
                return wrong_state("show", record.id, record.state, "staged")
            return published(record, self._shared.dice, replaces=replaces)

        await lock.change(job_id, decide, staged_too=True)

    async def _remove(self, job_id: str) -> None:
        store = self._shared.books.store
        found = await store.read(job_id)
        if found is None:
            return
        staged = found.record.staged or bool(found.record.txn)
        if staged and not await store.is_visible(found.record):
            await store.purge(job_id, found.revision)

    async def _retire_replaced(self) -> None:
        index = self._shared.books.index
        some, self._replaced = self._replaced, {}
        for job_id, replaced in some.items():
            new, old = index.get(job_id), index.get(replaced)
            if new is None or not new.visible or old is None or old.state in TERMINAL:
                continue
            await self._intake.retire(replaced)

    async def _tidy_verdicts(self) -> None:
        """Once no record names a transaction any more, its verdict can go."""
        shared = self._shared
        before_ms = shared.now_ms - 2 * round(shared.options.patience / timedelta(milliseconds=1))
        old = [txn for txn, at_ms in shared.books.txns.items() if at_ms < before_ms]
        if not old:
            return
        await shared.books.barrier()
        staged = {entry.txn for entry in shared.books.index.staged()}
        for txn in old:
            members = shared.books.index.of_txn(txn)
            for start in range(0, len(members), 64):
                await asyncio.gather(*(self._settle_txn(i) for i in members[start : start + 64]))
            if txn not in staged and not shared.books.index.of_txn(txn):
                await shared.books.store.forget_txn(txn)

    async def _settle_txn(self, job_id: str) -> None:
        """Write down that a job counts by itself, so that the verdict is not needed for it."""

        def decide(record: Record) -> Record | Refusal:
            if not record.txn:
                return record
            return rewritten(record, self._shared.dice, txn="")

        await self._shared.books.store.change(job_id, decide)
