"""The engine: every operation of an Open Job Spec server, in process, over NATS.

Any number of engines may run on the same buckets; they answer as one. What an operation changes
is stored when it returns, and every engine sees it from then on. A refusal is returned as a
value; `Refused` is raised for input that cannot be read and when NATS does not answer.
An HTTP face decodes, calls, and encodes; direct clients and workers call without it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from penstock.core.errors import PenstockError
from penstock.core.ids import short_token
from penstock.protocols.ojs import notes, rules
from penstock.protocols.ojs.crons import Crons
from penstock.protocols.ojs.dead import DeadLetters
from penstock.protocols.ojs.entry import Entry
from penstock.protocols.ojs.envelope import Submission, parse_submission
from penstock.protocols.ojs.eventlog import EventLog
from penstock.protocols.ojs.flows import Flows
from penstock.protocols.ojs.handing import Handing
from penstock.protocols.ojs.hooks import Hooks
from penstock.protocols.ojs.intake import Intake, Pushed
from penstock.protocols.ojs.options import OjsOptions
from penstock.protocols.ojs.orders import Orders
from penstock.protocols.ojs.peers import Peers
from penstock.protocols.ojs.queues import QueueConfig, QueueSettings
from penstock.protocols.ojs.record import Progress, Record
from penstock.protocols.ojs.refusal import Refusal, not_found
from penstock.protocols.ojs.requests import (
    AckRequest,
    BeatRequest,
    FetchRequest,
    Holding,
    NackRequest,
)
from penstock.protocols.ojs.room import Room
from penstock.protocols.ojs.room_left import RoomLeft
from penstock.protocols.ojs.services import Services
from penstock.protocols.ojs.shared import Shared, utc_now
from penstock.protocols.ojs.slots import LimitRow
from penstock.protocols.ojs.store import Decide
from penstock.protocols.ojs.throttle import RateLimit
from penstock.protocols.ojs.told import Told
from penstock.protocols.ojs.views import JobPage, JobQuery, LimitView, QueueView, Totals
from penstock.protocols.ojs.wakeups import acknowledge, publish_news
from penstock.protocols.ojs.workers import Beat, Workers

if TYPE_CHECKING:
    from penstock.broker.link import Link

__all__ = ["Engine"]


class Engine:
    """Make it with `open`, end it with `close`; or use ``async with await Engine.open(…)``."""

    def __init__(self, shared: Shared, *, services: bool) -> None:
        self.shared = shared
        self.options = shared.options
        self.started_at = shared.clock()
        self.peers = Peers(shared, answers=shared.follows)
        shared.books.wrote = partial(publish_news, shared)
        self.handing = Handing(shared, self._wake_up_of)
        self.orders = Orders(shared, self.handing, self.peers)
        self.handing.pick = self.orders.pick
        self.intake = Intake(shared, RoomLeft(shared, self.peers))
        self.dead_letters = DeadLetters(shared)
        self.workers = Workers(shared)
        self.told = Told(shared)
        self.crons = Crons(shared, self.intake, self.told)
        self.workflows = Flows(shared, self.intake, self.told)
        self.events = EventLog(shared)
        self.hooks = Hooks(shared)
        self.services = Services.of(self) if services else None

    @classmethod
    async def open(
        cls,
        link: Link,
        options: OjsOptions | None = None,
        *,
        services: bool = True,
        follows: bool = True,
        name: str = "",
        clock: Callable[[], datetime] = utc_now,
        dice: Random | None = None,
    ) -> Engine:
        """Make what is missing on the server, rebuild the index, and start the services
        (promoter, reaper, cron, reconciler, projector) unless told not to.

        Returns when everything stored before is in the index. ``name`` is this instance's.
        Without ``follows`` there is no index: it can take jobs in, look at one, and steer one.
        """
        chosen = options or OjsOptions()
        room = await Room.open(link, chosen)
        shared = Shared(
            room, chosen, clock, dice or Random(), name or short_token(), follows=follows
        )
        engine = cls(shared, services=services and follows)
        try:
            await engine._start()
        except BaseException:
            await engine.close()
            raise
        return engine

    async def _start(self) -> None:
        shared = self.shared
        if not shared.follows:
            await asyncio.gather(shared.queues.table.start(), self.peers.start())
            return
        shared.books.listen(self._ring)
        shared.books.listen(self.workflows.heard)
        if self.services is not None:
            self.services.listen(shared.books)
        await asyncio.gather(
            shared.books.start(),
            shared.queues.table.start(),
            shared.slots.table.start(),
            self.workers.start(),
            self.crons.table.start(),
            self.workflows.start(),
            self.hooks.start(),
        )
        await self.peers.start()
        shared.queues.table.listen(lambda _name, _row: shared.bells.ring_all())
        if self.services is not None:
            await self.services.start()

    async def close(self) -> None:
        """End the services and stop following. Safe to repeat; the link stays open."""
        self.handing.stopped = True
        self.shared.bells.ring_all()
        if self.services is not None:
            await self.services.stop()
        shared = self.shared
        for part in (
            self.orders,
            self.peers,
            self.events,
            self.hooks,
            self.workflows,
            self.workers,
            self.crons.table,
            shared.books,
            shared.queues.table,
            shared.slots.table,
        ):
            await part.stop()

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def ready(self) -> bool:
        """Whether the index is loaded and follows, and NATS is connected."""
        return self.shared.books.alive and self.shared.room.link.is_connected

    # Jobs -----------------------------------------------------------------------------------

    def submission(self, raw: Mapping[str, Raw], *, tenant: str = "", path: str = "") -> Submission:
        """Check one job as sent by a client, with the retry defaults of its queue.

        Raises `Refused` naming the first field that does not fit.
        """
        now, limits = self.shared.clock(), self.options.limits
        asked = parse_submission(raw, now=now, limits=limits, tenant=tenant, path=path)
        base = self.shared.queues.config(asked.queue).retry
        if base is None:
            return asked
        return parse_submission(raw, now=now, limits=limits, tenant=tenant, path=path, retry=base)

    async def push(self, asked: Submission, *, block_s: float = 0.0) -> Pushed | Refusal:
        """Take in one job. ``block_s``: how long to wait for room in a full queue that blocks."""
        return await self.intake.push(asked, block_s=block_s)

    async def push_many(
        self, asked: Sequence[Submission], *, atomic: bool = True
    ) -> list[Pushed | Refusal] | Refusal:
        """Take in many. ``atomic``: all or none, and a `Refusal` with ``details.index`` for
        none; otherwise each has its own answer, in order."""
        return await self.intake.push_many(asked, atomic=atomic)

    async def info(self, job_id: str, *, tenant: str = "") -> Record | Refusal:
        """The job as it is now. Another tenant's job does not exist."""
        found = await self.shared.books.store.visible(job_id)
        if found is None or (tenant and found.record.tenant != tenant):
            return not_found("job", job_id)
        return found.record

    async def info_many(self, job_ids: Sequence[str]) -> dict[str, Record]:
        """Those of the jobs that exist."""
        store = self.shared.books.store
        found = await store.read_many(job_ids)
        return {k: f.record for k, f in found.items() if await store.is_visible(f.record)}

    async def cancel(
        self, job_id: str, *, reason: str = "", by: str = "", tenant: str = ""
    ) -> Record | Refusal:
        """Stop the job for good. The state it was in: ``record.tail[-1].came_from``."""
        shared = self.shared
        return await self._change(
            job_id,
            lambda r: rules.cancel(
                r, shared.clock(), shared.dice, shared.keeping(r), reason=reason, by=by
            ),
            tenant,
        )

    async def activate(self, job_id: str, *, tenant: str = "") -> Record | Refusal:
        """Let a pending job be fetched."""
        return await self._change(
            job_id, lambda r: rules.activate(r, self.shared.clock(), self.shared.dice), tenant
        )

    async def reprioritise(
        self, job_id: str, priority: int, *, tenant: str = ""
    ) -> Record | Refusal:
        """Change the priority of a waiting job; its place among equals stays."""
        shared = self.shared
        return await self._change(
            job_id, lambda r: rules.reprioritise(r, priority, shared.clock(), shared.dice), tenant
        )

    async def redrive(
        self, job_id: str, *, override: dict[str, Any] | None = None
    ) -> Record | Refusal:
        """Give a discarded or cancelled job another life. ``override``: members of `Job`."""
        shared = self.shared
        return await self._change(
            job_id, lambda r: rules.redrive(r, shared.clock(), shared.dice, override=override)
        )

    async def delete(self, job_id: str) -> Record | Refusal:
        """Remove a finished job; what it was."""
        return await self.dead_letters.delete(job_id, any_finished=True)

    async def jobs(self, query: JobQuery) -> JobPage:
        """Jobs by state, queue, type or tenant, newest in their state first."""
        await self.shared.books.barrier()
        page, total = query.run(self.shared.books.index)
        records = await self.info_many([entry.id for entry in page.entries])
        return JobPage([records[e.id] for e in page.entries if e.id in records], page.cursor, total)

    # Workers --------------------------------------------------------------------------------

    async def fetch(
        self,
        asked: FetchRequest,
        *,
        tenant: str = "",
        until: Callable[[], bool] = lambda: False,
    ) -> list[Record]:
        """Claim up to ``count`` jobs; the queues are drained from left to right. A worker that
        drains, or was told to be quiet, gets none. ``record.held.fence`` proves the hold. When a
        fetch is cancelled, what it has claimed is given back; one that waits ends early when
        the queue's bell rings and ``until`` says so."""
        if asked.worker and self.workers.takes_nothing(asked.worker):
            return []
        return await self.handing.fetch(asked, tenant, until)

    async def give_back(self, records: Sequence[Record]) -> None:
        """The client went away before it heard of these jobs: available again, at no cost."""
        await self.handing.give_back(records)

    async def ack(self, asked: AckRequest) -> Record | Refusal:
        """The handler succeeded."""
        shared = self.shared
        return await self._settle(
            asked.job_id,
            lambda r: rules.acknowledge(r, asked, shared.clock(), shared.dice, shared.keeping(r)),
        )

    async def nack(self, asked: NackRequest) -> Record | Refusal:
        """The handler failed, or gives the job back with ``requeue``."""
        shared = self.shared
        return await self._settle(
            asked.job_id,
            lambda r: rules.nack(r, asked, shared.clock(), shared.dice, shared.keeping(r)),
        )

    async def heartbeat(self, asked: BeatRequest) -> Beat:
        """Note that a worker lives, and keep its jobs for another term."""
        answer = await self.workers.beat(asked)
        if answer.first:
            data = {"worker_id": asked.worker, "queues": list(asked.queues)}
            self.told.tell("worker.started", asked.worker, data, "workers")
        return answer

    async def extend(self, job_id: str, holding: Holding) -> Record | Refusal:
        """Keep one job for another term of its own."""
        shared = self.shared
        return await self._change(
            job_id, lambda r: rules.heartbeat(r, holding, shared.clock(), shared.dice)
        )

    # Checkpoints and progress ---------------------------------------------------------------

    async def save_checkpoint(
        self, job_id: str, state: Raw, holding: Holding | None = None
    ) -> Record | Refusal:
        """Keep ``state``; it is in ``record.job.checkpoint`` with its sequence. A ``holding``
        that is not the job's any more is refused."""
        shared = self.shared

        def decide(record: Record) -> Record | Refusal:
            if holding is not None and (no := rules.not_held(record, "save", holding)) is not None:
                return no
            return notes.save_checkpoint(record, state, shared.clock(), shared.dice, self.options)

        return await self._change(job_id, decide)

    async def checkpoint(self, job_id: str) -> Raw | Refusal:
        """``{state, sequence, created_at}`` as saved last."""
        found = await self.info(job_id)
        if isinstance(found, Refusal):
            return found
        saved = found.job.checkpoint
        return saved if isinstance(saved, Raw) else not_found("checkpoint", job_id)

    async def drop_checkpoint(self, job_id: str) -> Record | Refusal:
        """Forget the checkpoint, if there is one."""
        return await self._change(job_id, lambda r: notes.drop_checkpoint(r, self.shared.dice))

    async def note_progress(
        self,
        job_id: str,
        *,
        value: float | None = None,
        message: str = "",
        data: Raw | None = None,
    ) -> Record | Refusal:
        """Note how far a running job is (0 to 1); a job that does not run stays as it is.
        Counts as a heartbeat."""
        shared = self.shared

        def decide(record: Record) -> Record | Refusal:
            now = shared.clock()
            noted = notes.note_progress(
                record, now, shared.dice, value=value, message=message, data=data
            )
            if noted is record:
                return record
            return rules.heartbeat(noted, Holding(), now, shared.dice)

        return await self._change(job_id, decide)

    async def progress(self, job_id: str) -> tuple[Record, Progress | None] | Refusal:
        """The job and how far it said it is."""
        found = await self.info(job_id)
        return found if isinstance(found, Refusal) else (found, found.progress)

    # Queues ---------------------------------------------------------------------------------

    async def queues(self) -> list[QueueView]:
        """Every queue that has jobs or settings, by name."""
        await self._see_all_queues()
        known = {*self.shared.books.index.queues(), *self.shared.queues.names()}
        return [self._queue_view(name) for name in sorted(known)]

    async def queue(self, name: str) -> QueueView:
        """Exact counts and settings; zeros for a queue never seen."""
        await self._see_all_queues()
        return self._queue_view(name)

    async def pause(self, name: str, *, paused: bool = True) -> QueueView:
        """Hand out nothing from a queue (which need not exist) until it is resumed."""
        await self.shared.queues.set_paused(name, paused, self.shared.clock())
        await self.orders.sync()
        self.told.tell("queue.paused" if paused else "queue.resumed", name, {"queue": name})
        return await self.queue(name)

    async def resume(self, name: str) -> QueueView:
        return await self.pause(name, paused=False)

    async def configure(self, name: str, config: QueueConfig) -> QueueSettings:
        """Set what is given in ``config`` (see `parse_queue_config`), keep the rest."""
        return await self.shared.queues.set_config(name, config, self.shared.clock())

    async def purge_queue(self, name: str, states: Sequence[str], *, older_than_ms: int = 0) -> int:
        """Remove the queue's finished jobs in these states, cancel what waits; how many."""
        return await self.dead_letters.purge_queue(name, states, older_than_ms)

    # Limits ---------------------------------------------------------------------------------

    async def limits(self) -> list[LimitView]:
        """Every rate limit key that was ever used."""
        await self.shared.slots.table.barrier()
        await self.shared.books.barrier()
        rows = self.shared.slots.table.rows()
        return [self._limit_view(row) for _, row in rows if not row.key.startswith("=")]

    async def limit(self, key: str) -> LimitView | Refusal:
        await self.shared.slots.table.barrier()
        await self.shared.books.barrier()
        row = self.shared.slots.get(key)
        return not_found("rate limit", key) if row is None else self._limit_view(row)

    async def override_limit(
        self, key: str, policy: RateLimit | None, until_ms: int = 0
    ) -> LimitView:
        """Let ``policy`` hold for a key until then (0: for good), whatever jobs say."""
        return self._limit_view(await self.shared.slots.override(key, policy, until_ms))

    # Of the whole ---------------------------------------------------------------------------

    async def totals(self) -> Totals:
        """Jobs by state, queues and workers."""
        await self.shared.books.barrier()
        index = self.shared.books.index
        jobs: dict[str, int] = {}
        for queue in index.queues():
            for state, count in index.counts(queue).items():
                jobs[state] = jobs.get(state, 0) + count
        return Totals(
            queues=len({*index.queues(), *self.shared.queues.names()}),
            workers=len(self.workers.table),
            jobs=jobs,
            dead_letters=index.dead_letter_count,
            uptime_s=(self.shared.clock() - self.started_at).total_seconds(),
        )

    async def reset(self) -> None:
        """Remove everything, on every instance. For test runs; needs ``conformance``."""
        await self.shared.room.wipe()
        await self.shared.books.barrier()
        await self._see_all_queues()

    # Inside ---------------------------------------------------------------------------------

    async def _change(self, job_id: str, decide: Decide, tenant: str = "") -> Record | Refusal:
        if tenant:
            seen = await self.info(job_id, tenant=tenant)
            if isinstance(seen, Refusal):
                return seen
        done = await self.shared.books.store.change(job_id, decide)
        if isinstance(done, Refusal):
            return done
        if done.record.is_terminal and done.record.job.workflow_id:
            with contextlib.suppress(PenstockError):  # the job is done; the reconciler goes on
                await self.workflows.advance(done.record.job.workflow_id)
        return done.record

    async def _settle(self, job_id: str, decide: Decide) -> Record | Refusal:
        """A change that ends an attempt: the wake-up is acknowledged after it is written."""
        before: Record | None = None

        def noted(record: Record) -> Record | Refusal:
            nonlocal before
            before = record
            return decide(record)

        done = await self._change(job_id, noted)
        if not isinstance(done, Refusal):
            acknowledge(self.shared, before)
        return done

    def _wake_up_of(self, job_id: str) -> str:
        return "" if self.services is None else self.services.wake_ups.subject_of(job_id)

    def _ring(self, job_id: str, entry: Entry | None, record: Record | None) -> None:  # noqa: ARG002
        if entry is None:
            return
        if entry.state == "available" or entry.limit_key or entry.state != "active":
            self.shared.bells.ring(entry.queue)
        if entry.state != "available":
            self.shared.drained.ring(entry.queue)

    async def _see_all_queues(self) -> None:
        await asyncio.gather(self.shared.books.barrier(), self.shared.queues.table.barrier())

    def _queue_view(self, name: str) -> QueueView:
        return QueueView(
            name=name,
            settings=self.shared.queues.of(name),
            counts=self.shared.books.index.counts(name),
            depth=self.shared.books.index.depth(name),
        )

    def _limit_view(self, row: LimitRow) -> LimitView:
        slots, now_ms = self.shared.slots, self.shared.now_ms
        active, count, next_ms = slots.standing(row, now_ms)
        waiting = self.shared.books.index.waiting_under(row.key)
        return LimitView(row.key, row.in_force(now_ms), active, count, next_ms, waiting)
