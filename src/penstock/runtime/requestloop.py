"""The request loop: questions that wait for an answer, pushed to us and always answered.

There is no lease and no second delivery, so nothing is held back: over the limit of
concurrent requests the answer is a busy failure (status 503) at once, while a drain it is
`Interrupted`. What those become on the wire is the protocol's to say.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial

from penstock.core.delivery import Request, RequestSource
from penstock.core.errors import UnknownName
from penstock.core.outcome import (
    Failed,
    Failure,
    Interrupted,
    Outcome,
    Word,
    outcome_of_error,
)
from penstock.runtime.quiet import Quiet
from penstock.runtime.run import Run, outcome_of
from penstock.runtime.workshop import Workshop

__all__ = ["RequestLoop"]

_log = logging.getLogger("penstock.runtime")

_LAST_ANSWERS_S = 5.0
_SOURCE_STEP_S = 10.0


class RequestLoop:
    """``start`` opens the sources; ``stop`` answers what was accepted. Both are safe to repeat."""

    def __init__(
        self,
        sources: Sequence[RequestSource],
        shop: Workshop,
        *,
        slots: int = 256,
        on_ended: Callable[[], None] | None = None,
    ) -> None:
        self._sources = sources
        self._shop = shop
        self._slots = slots
        self._taken = 0
        self._taken_of: Counter[str] = Counter()
        self._on_ended = on_ended
        self._runs: set[Run] = set()
        self._started = False
        self._stopping = False
        self._quiet = Quiet(self._runs)
        self.zombies = 0
        self.refused = 0
        self._busy = Failed(
            Failure(
                code="busy",
                type="Busy",
                message=f"this worker answers {slots} requests already",
                status=503,
            )
        )

    @property
    def running(self) -> int:
        return len(self._runs)

    async def start(self) -> None:
        """Begin to answer."""
        if not self._started:
            self._started = True
            for source in self._sources:
                await source.start(self.receive)

    def force(self) -> None:
        """Cut the drain short."""
        self._quiet.hurry()

    async def stop(self, grace: timedelta = timedelta(seconds=30)) -> None:
        """Accept no more, answer what was accepted within ``grace``, interrupt the rest."""
        if self._stopping or not self._started:
            return
        await asyncio.gather(*(_tried(source.drain()) for source in self._sources))
        self._stopping = True
        if not await self._quiet.wait(grace.total_seconds()):
            for run in list(self._runs):
                run.stop(Interrupted())
            await self._quiet.wait(_LAST_ANSWERS_S, patient=True)
        await asyncio.gather(*(_tried(source.stop()) for source in self._sources))

    # Requests -------------------------------------------------------------------------------

    def receive(self, request: Request) -> None:
        """Answer ``request``, now or when its handler ends. Never waits, never raises."""
        invocation = request.invocation
        try:
            plan = self._shop.plan(invocation.task)
        except UnknownName as error:
            self._refuse(request, outcome_of_error(error))
            return
        if self._stopping:
            self._refuse(request, Interrupted())
            return
        if self._taken >= self._slots or not self._has_room(invocation.task):
            self.refused += 1
            self._refuse(request, self._busy)
            return
        run = Run(invocation, plan, self._shop)
        self._taken += 1
        self._taken_of[invocation.task] += 1
        self._runs.add(run)
        self._shop.ticker.add(run)
        self._shop.report.started(invocation)
        run.task = asyncio.get_running_loop().create_task(
            self._work(run, request), name=invocation.work_id
        )

    def _has_room(self, name: str) -> bool:
        limit = self._shop.tasks[name].concurrency
        if limit is None:
            return True
        return self._taken_of[name] < limit

    def _refuse(self, request: Request, outcome: Outcome) -> None:
        self._answer(request, outcome)
        self._shop.report.ended(request.invocation, outcome, None, 0.0)

    async def _work(self, run: Run, request: Request) -> None:
        outcome: Outcome = Interrupted("the worker broke off")
        try:
            outcome = await outcome_of(run)
        finally:
            self._end(run, request, outcome)

    def _end(self, run: Run, request: Request, outcome: Outcome) -> None:
        shop = self._shop
        shop.ticker.discard(run)
        self._answer(request, outcome)
        if isinstance(outcome, Failed) and outcome.verdict is not Word.NEVER:
            _log.warning("failed: %s", outcome.failure.message, extra=run.ids)
        shop.report.ended(run.invocation, outcome, None, shop.clock() - run.started_at)
        self._runs.discard(run)
        if run.call is None or run.call.ended:
            self._release(run)
        else:  # a thread cannot be killed: its place stays taken until it ends by itself
            self.zombies += 1
            run.call.on_end = partial(self._bury, run)
        if self._on_ended is not None:
            self._on_ended()
        self._quiet.look()

    def _release(self, run: Run) -> None:
        self._taken -= 1
        self._taken_of[run.invocation.task] -= 1

    def _bury(self, run: Run) -> None:
        self.zombies -= 1
        self._release(run)

    def _answer(self, request: Request, outcome: Outcome) -> None:
        try:
            request.answer(outcome)
        except Exception:  # noqa: BLE001 - an adapter that raises must not end the loop
            _log.exception("answering failed", extra={"runId": request.invocation.work_id})


async def _tried(step: Awaitable[None]) -> None:
    try:
        await asyncio.wait_for(step, _SOURCE_STEP_S)
    except Exception:  # noqa: BLE001 - the drain goes on without this source
        _log.exception("a request source did not stop cleanly")
