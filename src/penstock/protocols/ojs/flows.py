"""Workflows at work: created by one write, advanced by whoever sees a member end.

The row of a workflow is written first, create-only; its jobs follow under ids that are computed
from workflow and place, create-only too. So after a crash anywhere in between, any instance makes
what is missing, and none can make anything twice: not a step, not a callback. Progress is read
off the members' records; the row is written again once, when the workflow ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Final, Literal

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from penstock.core import points
from penstock.core.errors import PenstockError
from penstock.core.ids import uuid7
from penstock.protocols.ojs import rules
from penstock.protocols.ojs.arrival import enqueue
from penstock.protocols.ojs.entry import Entry
from penstock.protocols.ojs.envelope import parse_submission
from penstock.protocols.ojs.failing import discarded
from penstock.protocols.ojs.fields import Fields, object_of
from penstock.protocols.ojs.flow import (
    Node,
    Reader,
    StateOf,
    Status,
    judge,
    leaves,
    node_at,
    parents_of,
    parse_flow,
    paths_in,
    results_of,
    status_at,
    succeeded,
)
from penstock.protocols.ojs.instants import in_ms
from penstock.protocols.ojs.intake import Intake, Place, Pushed
from penstock.protocols.ojs.names import JOB_ID, TERMINAL, fixed_id
from penstock.protocols.ojs.record import Membership, Record
from penstock.protocols.ojs.refusal import Refusal, not_found, wrong_state
from penstock.protocols.ojs.requests import ErrorGiven
from penstock.protocols.ojs.shared import Shared
from penstock.protocols.ojs.table import Table
from penstock.protocols.ojs.told import Told

__all__ = ["FlowRow", "FlowView", "Flows", "StepView"]

_log = logging.getLogger("penstock.ojs")
_LATER_S: Final = 0.02  # what another instance has seen end, it advances itself: look after it
_AT_ONCE: Final = 128

FlowState = Literal["running", "completed", "failed", "cancelled"]


class FlowRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    root: Node
    state: FlowState
    created_ms: int
    name: str = ""
    tenant: str = ""
    ended_ms: int = 0
    done: int = 0
    cancelled: int = 0

    @property
    def kind(self) -> str:
        return self.root.kind

    def job_id(self, path: str) -> str:
        """The id of the job at ``path``, the same wherever it is computed."""
        return fixed_id(self.created_ms, "workflow", self.id, path)


class StepView(Struct, frozen=True):
    """A part at the top of a workflow (or a callback); ``job_id`` only of a job that exists."""

    index: int
    id: str
    kind: str
    type: str
    state: str
    job_id: str = ""
    depends_on: tuple[str, ...] = ()


class FlowView(Struct, frozen=True):
    """``total`` and ``done`` count the parts at the top; ``jobs`` and ``failed`` all members."""

    row: FlowRow
    total: int
    done: int
    failed: int
    jobs: int
    steps: tuple[StepView, ...]
    callbacks: tuple[StepView, ...] = ()


class Flows:
    def __init__(self, shared: Shared, intake: Intake, told: Told) -> None:
        self._shared = shared
        self._intake = intake
        self._told = told
        self.table: Table[FlowRow] = Table(shared.room.workflows, "flow", FlowRow)
        self._turns: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._stopped = False

    async def start(self) -> None:
        await self.table.start()

    async def stop(self) -> None:
        self._stopped = True
        turns = list(self._turns.values())
        for turn in turns:
            turn.cancel()
        if turns:
            await asyncio.wait(turns)
        await self.table.stop()

    # Asking -----------------------------------------------------------------------------

    def parse(self, raw: Mapping[str, Raw], tenant: str = "") -> FlowRow:
        """A workflow as sent, every member checked. Raises `Refused` naming the path."""
        shared, limits = self._shared, self._shared.options.limits
        now = shared.clock()

        def check(body: dict[str, Raw], path: str) -> None:
            parse_submission(body, now=now, limits=limits, tenant=tenant, path=path)

        fields = Fields(dict(raw))
        reader = Reader(
            check, max_depth=limits.max_workflow_depth, max_jobs=limits.max_workflow_jobs
        )
        root = parse_flow(fields, reader)
        return FlowRow(
            id=fields.name("id", JOB_ID, "must be a UUIDv7 in lower case") or uuid7(),
            root=root,
            state="running",
            created_ms=in_ms(now),
            name=fields.text("name", max_chars=255) or "",
            tenant=tenant,
        )

    async def create(self, row: FlowRow) -> FlowView | Refusal:
        """Keep the workflow and enqueue what starts at once."""
        if not await self.table.create(row.id, row):
            return Refusal("duplicate", f"Workflow {row.id} exists", {"workflow_id": row.id})
        if points.armed:
            points.reach("ojs.workflow_created")
        self._told.tell(
            "workflow.started",
            row.id,
            {"workflow_id": row.id, "workflow_name": row.name, "total_steps": len(row.root.parts)},
        )
        await self.advance(row.id)
        return self._view(row)

    async def get(self, flow_id: str, *, tenant: str = "") -> FlowView | Refusal:
        """The workflow as its members stand now."""
        await asyncio.gather(self._shared.books.barrier(), self.table.barrier())
        row = self.table.get(flow_id)
        if row is None or (tenant and row.tenant != tenant):
            return not_found("workflow", flow_id)
        return self._view(row)

    async def all(self) -> list[FlowView]:
        await asyncio.gather(self._shared.books.barrier(), self.table.barrier())
        return [self._view(row) for _, row in self.table.rows()]

    async def cancel(self, flow_id: str) -> FlowView | Refusal:
        """Start nothing more, and cancel every member that waits; running ones may finish."""
        await self._shared.books.barrier()
        shared = self._shared

        def decide(row: FlowRow | None) -> FlowRow | Refusal:
            if row is None:
                return not_found("workflow", flow_id)
            if row.state != "running":
                facts = {"workflow_id": flow_id, "current_state": row.state}
                return Refusal("conflict", f"Workflow {flow_id} is {row.state}", facts)
            done = succeeded(row.root, self._state_of(row))
            return replace(row, state="cancelled", ended_ms=shared.now_ms, done=done)

        row = await self.table.change(flow_id, decide)
        if row is None:
            return not_found("workflow", flow_id)
        if isinstance(row, Refusal):
            return row
        await self._cancel_members(row)
        return self._view(row)

    def is_running(self, flow_id: str) -> bool:
        row = self.table.get(flow_id)
        return row is not None and row.state == "running"

    # Advancing --------------------------------------------------------------------------

    def heard(self, _job_id: str, entry: Entry | None, _record: Record | None) -> None:
        """A job changed: look at its workflow, after the one whose job it is has had a chance."""
        if entry is None or not entry.workflow or entry.state not in TERMINAL:
            return
        if not self._stopped and not self._shared.books.starting:
            asyncio.get_running_loop().call_later(_LATER_S, self._poke, entry.workflow)

    async def advance(self, flow_id: str) -> None:
        """Start what should have been started, and end the workflow if it is over. When this
        returns, everything that was known when it was called has been acted on."""
        turn = self._turns.get(flow_id)
        if turn is not None:
            self._again.add(flow_id)
        else:
            turn = asyncio.get_running_loop().create_task(
                self._advance(flow_id), name=f"ojs:workflow:{flow_id}"
            )
            self._turns[flow_id] = turn
            turn.add_done_callback(_retrieve)
        await asyncio.shield(turn)

    async def advance_all(self) -> None:
        """Look at every workflow that is not over: after a start, and now and then."""
        for flow_id, row in list(self.table.rows()):
            if row.state == "running":
                await self.advance(flow_id)
            elif row.state == "cancelled":
                await self._cancel_members(row)

    async def forget_old(self) -> None:
        """Remove workflows whose time is over; their members go by their own retention."""
        now_ms = self._shared.now_ms
        keep_ms = round(self._shared.options.keep_completed / timedelta(milliseconds=1))
        for flow_id, row in list(self.table.rows()):
            if row.state != "running" and row.ended_ms + keep_ms < now_ms:
                await self.table.remove(flow_id)

    # Inside -----------------------------------------------------------------------------

    def _poke(self, flow_id: str) -> None:
        row = self.table.get(flow_id)
        if self._stopped or row is None or row.state != "running":
            return
        if flow_id in self._turns:
            self._again.add(flow_id)
            return
        turn = asyncio.get_running_loop().create_task(
            self._advance(flow_id), name=f"ojs:workflow:{flow_id}"
        )
        self._turns[flow_id] = turn
        turn.add_done_callback(_retrieve)

    async def _advance(self, flow_id: str) -> None:
        try:
            while True:
                self._again.discard(flow_id)
                moved = await self._step(flow_id)
                if not moved and flow_id not in self._again:
                    return
        finally:
            self._turns.pop(flow_id, None)

    async def _step(self, flow_id: str) -> bool:
        """One look at a workflow: whether it moved."""
        row = self.table.get(flow_id)
        if row is None or row.state != "running":
            return False
        standing = self._shared.books.index.tally.of(flow_id)
        if row.root.is_flat and len(row.root.parts) <= standing.jobs > standing.over:
            return False  # nothing follows before all members are over: spare the look
        verdict = judge(row.root, self._state_of(row))
        if verdict.start:
            await self._start_all(row, verdict.start)
            return True
        if verdict.status in ("succeeded", "failed"):
            await self._end(row, verdict.status)
        return False

    async def _start_all(self, row: FlowRow, paths: tuple[str, ...]) -> None:
        order = {path: n for n, (path, _) in enumerate(leaves(row.root))}
        at = self._shared.clock()
        for begin in range(0, len(paths), _AT_ONCE):
            some = paths[begin : begin + _AT_ONCE]
            places = [await self._place(row, path, order[path]) for path in some]
            await asyncio.gather(
                *(
                    self._start(row, path, replace(place, at=at))
                    for path, place in zip(some, places, strict=True)
                )
            )
        if points.armed:
            points.reach("ojs.workflow_started")
        kept = await self.table.read(row.id)
        if kept is None or kept.value.state == "cancelled":
            await self._cancel_members(row)

    async def _place(self, row: FlowRow, path: str, order: int) -> Place:
        """Where a member belongs, with the results of those before it."""
        above = parents_of(row.root, path) if row.kind != "job" else ()
        ids = {p: row.job_id(p) for p in paths_in(above)}
        found = await self._shared.books.store.read_many(ids.values()) if ids else {}
        results = {
            p: result
            for p, job_id in ids.items()
            if job_id in found and isinstance(result := found[job_id].record.job.result, Raw)
        }
        word = path.split(".", maxsplit=1)[0]
        step = int(word) if word.isdigit() else len(row.root.parts)
        return Place(
            job_id=row.job_id(path),
            member=Membership(workflow=row.id, node=path, step=step),
            parent_results=Raw(msgspec.json.encode(results_of(above, results))),
            order=order,
        )

    async def _start(self, row: FlowRow, path: str, place: Place) -> None:
        node, shared = node_at(row.root, path), self._shared
        assert isinstance(node.body, Raw)  # only jobs are started
        asked = parse_submission(
            object_of(bytes(node.body)),
            now=shared.clock(),
            limits=shared.options.limits,
            tenant=row.tenant,
        )
        done = await self._intake.push(asked, place)
        if isinstance(done, Pushed) and not done.deduplicated:
            return
        if isinstance(done, Refusal) and done.details.get("existing_job_id") == place.job_id:
            found = await shared.books.store.read(place.job_id)
            if found is not None:  # another instance was here first
                shared.books.heard(found.record, found.revision)
            return
        if isinstance(done, Refusal) and done.code == "QUEUE_FULL":
            return  # tried again by the reconciler
        why = done.message if isinstance(done, Refusal) else "an equal unique job exists"
        error = ErrorGiven(code="duplicate", message=f"Not enqueued: {why}")
        first = enqueue(
            asked,
            place.job_id,
            shared.clock(),
            shared.dice,
            member=place.member,
            parent_results=place.parent_results,
        )
        gone = discarded(first, shared.clock(), shared.dice, shared.keeping(first), error=error)
        await shared.books.store.create(gone)

    async def _end(self, row: FlowRow, status: Status) -> None:
        shared = self._shared
        state: FlowState = "completed" if status == "succeeded" else "failed"
        done = succeeded(row.root, self._state_of(row))

        def decide(now: FlowRow | None) -> FlowRow | None:
            if now is None or now.state != "running":
                return None
            return replace(now, state=state, ended_ms=shared.now_ms, done=done)

        ended = await self.table.change(row.id, decide)
        if isinstance(ended, FlowRow) and ended.state == state:
            facts = {
                "workflow_id": row.id,
                "workflow_name": row.name,
                "total_steps": len(row.root.parts),
                "duration_ms": max(ended.ended_ms - row.created_ms, 0),
            }
            self._told.tell(f"workflow.{state}", row.id, facts)

    async def _cancel_members(self, row: FlowRow) -> None:
        shared, index = self._shared, self._shared.books.index

        def decide(record: Record) -> Record | Refusal:
            if record.state == "active":
                return wrong_state("cancel", record.id, "active", "waiting")
            return rules.cancel(
                record,
                shared.clock(),
                shared.dice,
                shared.keeping(record),
                reason="workflow cancelled",
            )

        waiting = [
            job_id
            for job_id in index.tally.members(row.id).values()
            if (e := index.get(job_id)) is not None and e.state not in (*TERMINAL, "active")
        ]
        await asyncio.gather(*(shared.books.store.change(i, decide) for i in waiting))

    def _state_of(self, row: FlowRow) -> StateOf:
        index = self._shared.books.index

        def state(path: str) -> str | None:
            entry = index.get(row.job_id(path))
            return None if entry is None else entry.state

        return state

    # Showing ----------------------------------------------------------------------------

    def _view(self, row: FlowRow) -> FlowView:
        standing = self._shared.books.index.tally.of(row.id)
        state_of = self._state_of(row)
        over = row.state != "running"
        done = row.done if over else succeeded(row.root, state_of)
        steps = tuple(
            self._step_view(row, part, str(index), index)
            for index, part in enumerate(row.root.parts)
        )
        callbacks = tuple(
            self._step_view(row, part, role, len(steps) + n)
            for n, (role, part) in enumerate(row.root.callbacks.items())
        )
        return FlowView(
            row=row,
            total=len(row.root.parts),
            done=done,
            failed=standing.over - standing.succeeded,
            jobs=sum(1 for _ in leaves(row.root)),
            steps=steps,
            callbacks=callbacks,
        )

    def _step_view(self, row: FlowRow, part: Node, path: str, index: int) -> StepView:
        state_of = self._state_of(row)
        names = [p.name for p in row.root.parts]
        shown, job_id = "waiting", ""
        if part.kind == "job":
            state = state_of(path)
            shown = state or ("waiting" if row.state == "running" else "cancelled")
            job_id = row.job_id(path) if state is not None else ""
        elif any(state_of(p) for p, _ in leaves(part, path)):
            shown = status_at(row.root, path, state_of)
        kind = ""
        if isinstance(part.body, Raw):
            kind = msgspec.json.decode(object_of(bytes(part.body))["type"])
        return StepView(
            index=index,
            id=part.name or (f"step-{index}" if path.isdigit() else path),
            kind=part.kind,
            type=kind,
            state=shown,
            job_id=job_id,
            depends_on=tuple(names[i] for i in part.after),
        )


def _retrieve(turn: asyncio.Task[None]) -> None:
    if not turn.cancelled() and (error := turn.exception()) is not None:
        said = error.message if isinstance(error, PenstockError) else repr(error)
        _log.warning("a workflow could not be advanced just now: %s", said)
