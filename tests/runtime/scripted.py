"""A wire in memory that keeps the contract, and that can be told to misbehave at any call.

`ScriptedWire` is a small honest store: leases with fences, delays, attempts and deliveries,
checkpoints. ``wire.script(call, answer)`` makes the next such call answer what is given
(a value), or raise it (an exception).
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from penstock.core.context import LeaseLost
from penstock.core.delivery import (
    CancelAsked,
    Delivery,
    Facilities,
    Facility,
    Gone,
    Progress,
    Renewal,
    Renewed,
    Settled,
    SettledKind,
    Settlement,
)
from penstock.core.ids import short_token
from penstock.core.invocation import MISSING, Checkpoint, Invocation
from penstock.core.lease import Lease, Proof
from penstock.core.outcome import (
    After,
    Cancelled,
    Continued,
    Done,
    Failed,
    Interrupted,
    Lost,
    Outcome,
    Snoozed,
    Word,
)

__all__ = ["ScriptedDelivery", "ScriptedSource", "ScriptedWire", "Work"]

ALL = Facilities(checkpoint=Facility.NATIVE, progress=Facility.NATIVE, cancel=Facility.NATIVE)


@dataclass(eq=False)
class Work:
    """One piece of work as the store has it."""

    task: str
    body: Any
    work_id: str
    attempt: int = 1
    delivery: int = 0
    due: float = 0.0
    fence: str = ""
    lapses: float = 0.0
    checkpoint: Checkpoint | None = None
    state: SettledKind | None = None
    cancel_asked: bool = False
    settled_as: list[Outcome] = field(default_factory=list)
    notes: list[Progress] = field(default_factory=list)


class ScriptedWire:
    """The store, its sources, and the script."""

    def __init__(
        self,
        task: str = "",
        *,
        term_s: float = 60.0,
        beat_s: float | None = None,
        proof: Proof = Proof.CONFIRMED,
        max_attempts: int = 5,
    ) -> None:
        self.can = ALL
        self.task = task
        self.term = timedelta(seconds=term_s)
        self.beat = None if beat_s is None else timedelta(seconds=beat_s)
        self.proof = proof
        self.max_attempts = max_attempts
        self.works: dict[str, Work] = {}
        self.calls: dict[str, int] = defaultdict(int)
        self.came_back: dict[str, int] = defaultdict(int)  # calls that were not cancelled
        self.asked: list[int] = []
        self.changed = asyncio.Condition()
        self._script: dict[str, deque[Any]] = defaultdict(deque)

    # The script -----------------------------------------------------------------------------

    def script(self, call: str, *answers: Any) -> None:
        """The next calls named ``call`` answer these, or raise those that are exceptions."""
        self._script[call].extend(answers)

    async def called(self, call: str) -> Any:
        """Count the call; the scripted answer, or ``None`` to go on as usual."""
        self.calls[call] += 1
        await asyncio.sleep(0)  # as any network would, and where a cancellation would strike
        await self.tell()
        self.came_back[call] += 1
        if not self._script[call]:
            return None
        answer = self._script[call].popleft()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    # What the contract asks -----------------------------------------------------------------

    async def enqueue(self, body: Any = MISSING, *, task: str = "", work_id: str = "") -> str:
        work = Work(task or self.task or "job", body, work_id or short_token())
        self.works[work.work_id] = work
        await self.tell()
        return work.work_id

    async def enqueue_malformed(self) -> str:
        work_id = await self.enqueue("?")
        self.works[work_id].state = SettledKind.PARKED
        return work_id

    async def source(self) -> ScriptedSource:
        return ScriptedSource(self)

    async def steal(self, delivery: Delivery) -> None:
        work = self.works[delivery.invocation.work_id]
        work.fence, work.lapses = short_token(), time.monotonic() + 60

    async def cancel(self, work_id: str) -> None:
        self.works[work_id].cancel_asked = True

    async def state(self, work_id: str) -> SettledKind | str:
        return self.works[work_id].state or "live"

    # What tests wait for --------------------------------------------------------------------

    async def tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, true: Any, within_s: float = 30.0) -> None:
        """Wait until ``true()`` holds, looked at after every change."""
        async with asyncio.timeout(within_s), self.changed:
            await self.changed.wait_for(true)

    async def settled(self, *work_ids: str) -> None:
        """Wait until each was settled at least once."""
        ids = work_ids or tuple(self.works)
        await self.until(lambda: all(self.works[i].settled_as for i in ids))

    async def over(self, *work_ids: str) -> None:
        """Wait until each is settled for good."""
        ids = work_ids or tuple(self.works)
        await self.until(lambda: all(self.works[i].state for i in ids))

    def outcomes(self, work_id: str) -> list[str]:
        """The names of the outcomes it was settled with."""
        return [type(outcome).__name__ for outcome in self.works[work_id].settled_as]

    def ready(self, task: str) -> Work | None:
        now = time.monotonic()
        for work in self.works.values():
            mine = not task or work.task == task
            if mine and work.state is None and work.due <= now and work.lapses <= now:
                return work
        return None


class ScriptedSource:
    """One taker."""

    def __init__(self, wire: ScriptedWire, name: str = "scripted", task: str | None = None) -> None:
        self.wire = wire
        self.name = name
        self.task = wire.task if task is None else task
        self.facilities = wire.can
        self.stopped = False

    async def take(self, most: int, wait: timedelta) -> Sequence[ScriptedDelivery]:
        self.wire.asked.append(most)
        answer = await self.wire.called("take")
        if answer is not None:
            return list(answer)
        end = time.monotonic() + wait.total_seconds()
        while True:
            taken = self._claim(most)
            if taken or self.stopped or time.monotonic() >= end:
                return taken
            await self._until_changed(min(end - time.monotonic(), 0.02))

    async def waiting(self) -> int | None:
        answer = await self.wire.called("waiting")
        if answer is not None:
            return int(answer)
        now = time.monotonic()
        return sum(1 for w in self.wire.works.values() if w.state is None and w.lapses <= now)

    async def stop(self) -> None:
        self.stopped = True
        await self.wire.called("stop")

    def _claim(self, most: int) -> list[ScriptedDelivery]:
        taken: list[ScriptedDelivery] = []
        while not self.stopped and len(taken) < most and (work := self.wire.ready(self.task)):
            if work.lapses:  # it was held before, and its holder fell silent
                work.attempt += 1
            work.delivery += 1
            work.fence = short_token()
            work.lapses = time.monotonic() + self.wire.term.total_seconds()
            taken.append(ScriptedDelivery(self.wire, work))
        return taken

    async def _until_changed(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(seconds, 0.001)), self.wire.changed:
                await self.wire.changed.wait()
        except TimeoutError:
            return


class ScriptedDelivery:
    """One hand-out."""

    def __init__(self, wire: ScriptedWire, work: Work) -> None:
        self.wire = wire
        self.work = work
        self.fence = work.fence
        self.lease: Lease | None = Lease(
            "ann", work.fence, wire.term, proof=wire.proof, renew_every=wire.beat
        )
        kept = work.checkpoint
        self.invocation = Invocation(
            protocol="natq",
            task=work.task,
            work_id=work.work_id,
            body=work.body,
            attempt=work.attempt,
            delivery=work.delivery,
            checkpoint=kept,
            iteration=kept.iteration if kept else 0,
        )

    @property
    def mine(self) -> bool:
        held = self.work.lapses > time.monotonic()
        return self.work.fence == self.fence and held and self.work.state is None

    async def renew(self) -> Renewal:
        answer = await self.wire.called("renew")
        if answer is not None:
            return answer
        if not self.mine:
            return Gone()
        self.work.lapses = time.monotonic() + self.wire.term.total_seconds()
        return CancelAsked() if self.work.cancel_asked else Renewed()

    async def save(self, checkpoint: Any) -> None:
        await self.wire.called("save")
        if self.work.fence != self.fence:
            raise LeaseLost("another worker has it")
        kept = self.work.checkpoint
        self.work.checkpoint = Checkpoint(checkpoint, kept.iteration if kept else 0)

    async def note(self, progress: Progress) -> None:
        await self.wire.called("note")
        self.work.notes.append(progress)

    async def settle(self, outcome: Outcome) -> Settlement:
        self.work.settled_as.append(outcome)
        answer = await self.wire.called("settle")
        if answer is not None:
            return answer
        if not self.mine or isinstance(outcome, Lost):
            return Gone()
        settled = self._settled(outcome)
        lost_answer = await self.wire.called("settled")  # it was done; what is heard of it?
        return settled if lost_answer is None else lost_answer

    def _settled(self, outcome: Outcome) -> Settled:
        match outcome:
            case Done():
                return self._over(SettledKind.SUCCEEDED)
            case Cancelled():
                return self._over(SettledKind.CANCELLED)
            case Failed(verdict=verdict):
                if verdict is Word.NEVER or self.work.attempt >= self.wire.max_attempts:
                    return self._over(SettledKind.PARKED)
                self.work.attempt += 1
                after = verdict.delay if isinstance(verdict, After) else timedelta(0)
                return self._back(SettledKind.RETRYING, after)
            case Snoozed(after=after, checkpoint=value):
                self.work.checkpoint = Checkpoint(value)
                return self._back(SettledKind.SNOOZED, after)
            case Continued(checkpoint=value):
                self.work.checkpoint = Checkpoint(value, self.invocation.iteration + 1)
                return self._back(SettledKind.CONTINUED)
            case Interrupted():
                return self._back(SettledKind.RETURNED)
            case Lost():
                raise AssertionError("answered above")

    def _over(self, kind: SettledKind) -> Settled:
        self.work.state = kind
        return Settled(kind)

    def _back(self, kind: SettledKind, after: timedelta = timedelta(0)) -> Settled:
        self.work.due = time.monotonic() + after.total_seconds()
        self.work.fence, self.work.lapses = "", 0.0
        return Settled(kind, attempt=self.work.attempt)
