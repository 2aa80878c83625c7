"""A run: one execution of one handler, from its input to an outcome.

Whatever happens inside becomes an `Outcome` value: a return, any exception, input that does
not fit, a result that JSON cannot say, a timeout. A run that was told to stop ends with the
reason for that as its verdict; work that was finished all the same still counts, unless it
was cancelled or its lease is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from math import inf
from typing import Any

from msgspec.structs import replace

from penstock.core.codec import JsonError
from penstock.core.context import Context
from penstock.core.delivery import Progress
from penstock.core.errors import BadResult, ConfigError
from penstock.core.events import now_utc
from penstock.core.invocation import Invocation
from penstock.core.outcome import (
    Cancelled,
    Continued,
    Done,
    Failed,
    Interrupted,
    Lost,
    Outcome,
    Snoozed,
    TaskTimeout,
    failure_of,
    outcome_of_error,
    outcome_of_value,
)
from penstock.core.task import RunsIn
from penstock.runtime.observe.traces import Tracer
from penstock.runtime.threads import Crossing
from penstock.runtime.workshop import Call, Plan, Workshop

__all__ = ["Run", "outcome_of", "timed_out"]

_NUDGE_S = 1.0  # a handler that ignores its cancellation is reminded this often


class Run:
    """One execution: its limits, why it should stop, and what its context may ask of it."""

    __slots__ = (
        "call",
        "deadline",
        "due",
        "entered",
        "invocation",
        "nudge_at",
        "plan",
        "shop",
        "started_at",
        "task",
        "verdict",
    )

    def __init__(self, invocation: Invocation, plan: Plan, shop: Workshop) -> None:
        self.invocation = invocation
        self.plan = plan
        self.shop = shop
        self.nudge_at = inf
        self.entered = False
        self.verdict: Outcome | None = None
        self.call: Call | None = None
        self.task: asyncio.Task[None] | None = None
        self.start_clock()

    def start_clock(self) -> None:
        """Count the time limits from now."""
        now = self.started_at = self.shop.clock()
        self.deadline = now + self.plan.timeout_s
        if self.invocation.deadline_at is not None:
            left = (self.invocation.deadline_at - now_utc()).total_seconds()
            self.deadline = min(self.deadline, now + left)
        self.due = self.deadline

    def in_line(self) -> None:
        """Its handler waits for a free thread. Whoever asked a question waits just as long."""

    # What a context asks (`Backchannel`) ------------------------------------------------

    @property
    def stopped(self) -> str:
        match self.verdict:
            case None:
                return ""
            case Failed(failure=failure):
                return failure.message
            case Lost(reason) | Cancelled(reason) | Interrupted(reason):
                return reason
            case _:
                return "stopped"

    @property
    def worker_id(self) -> str:
        return self.shop.worker_id

    @property
    def ids(self) -> dict[str, str]:
        """What every log line about this run carries."""
        of = self.invocation
        return {"workerId": self.worker_id, "taskId": of.task, "runId": of.work_id}

    def note(self, progress: Progress) -> None:
        """Tell the world; a run that came over a wire with a place for progress does more."""
        self.shop.report.progressed(self.invocation, progress)

    async def save(self, value: Any) -> None:
        raise ConfigError(
            f"a checkpoint of {type(value).__name__} cannot be kept: a request is not stored",
            remedy="serve the task as stored work: @app.task without reply=True",
        )

    # Stopping -----------------------------------------------------------------------------

    def stop(self, verdict: Outcome, *, gently: bool = False) -> None:
        """Ask the handler to end. The first reason stands; only a lost lease overrides it.

        ``gently``: only its context says so at first; it is broken off a second later.
        """
        if self.verdict is not None and not isinstance(verdict, Lost):
            return
        self.verdict = verdict
        if not gently:
            self._break_off()
        self.nudge_at = self.shop.clock() + _NUDGE_S
        self.due = min(self.due, self.nudge_at)
        self.shop.ticker.moved(self)

    def _break_off(self) -> None:
        if self.call is not None:
            self.call.abandon()
        if self.task is not None and self.entered:  # before that, it sees the verdict itself
            self.task.cancel()

    def tick(self, now: float) -> None:
        self.look_at_clock(now)
        self.due = self.next_due()

    def look_at_clock(self, now: float) -> None:
        """Stop what has run too long, and remind what was stopped and did not end."""
        if self.verdict is None:
            if now >= self.deadline:
                self.stop(timed_out(now - self.started_at))
        elif now >= self.nudge_at:
            self.nudge_at = now + _NUDGE_S
            self._break_off()

    def next_due(self) -> float:
        return self.deadline if self.verdict is None else self.nudge_at

    def context(self) -> Context:
        """The handler's view; its deadline is the nearer of the wire's and the task's."""
        invocation = self.invocation
        if self.plan.timeout is not None:
            limit = now_utc() + self.plan.timeout
            known = invocation.deadline_at
            nearer = limit if known is None else min(known, limit)
            invocation = replace(invocation, deadline_at=nearer)
        if self.plan.in_loop:
            return Context(invocation, self)
        return Context(invocation, Crossing(self, asyncio.get_running_loop()))


def outcome_of(run: Run) -> Coroutine[Any, Any, Outcome]:
    """Run the handler and say what became of it. Raises nothing but what ends the program."""
    return _guarded(run) if run.shop.tracer is None else _traced(run, run.shop.tracer)


async def _traced(run: Run, tracer: Tracer) -> Outcome:
    with tracer.span(run.invocation) as span:
        outcome = await _guarded(run)
        span.ended(outcome)
        return outcome


async def _guarded(run: Run) -> Outcome:
    run.entered = True
    if run.verdict is not None:
        return run.verdict
    if run.deadline <= run.started_at:
        return timed_out(0.0)
    try:
        outcome = await _said(run)
    except asyncio.CancelledError as error:
        return await _after_cancel(run, error)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
        outcome = outcome_of_error(error)
    if run.task is not None and run.task.cancelling():
        await _forget_cancel(run.task)
    return _judged(run, outcome)


async def _said(run: Run) -> Outcome:
    plan = run.plan
    context = run.context() if plan.wants_context else None
    args, kwargs = plan.bind(run.invocation.body, context)
    if plan.in_loop:
        outcome = outcome_of_value(await plan.fn(*args, **kwargs))
    else:
        back = Crossing(run, asyncio.get_running_loop())
        call = run.call = run.shop.offload.call(plan, args, kwargs, back)
        if call.queued:
            run.in_line()
        said = await call.wait()
        outcome = said if plan.runs_in is RunsIn.PROCESS else outcome_of_value(said)
    if type(outcome) is Done:
        ready = _encoded(plan, outcome.value)
        return outcome if ready is outcome.value else Done(ready, outcome.status)
    return outcome


def _encoded(plan: Plan, value: Any) -> Any:
    try:
        return plan.encode(value)
    except JsonError as error:  # told apart from a handler that could not read some JSON
        raise BadResult(f"the result is not JSON: {error}") from error


async def _after_cancel(run: Run, error: asyncio.CancelledError) -> Outcome:
    asked = run.task is not None and run.task.cancelling()
    if run.task is not None and asked:
        await _forget_cancel(run.task)
    if run.verdict is not None:
        return run.verdict
    if asked:
        return Interrupted("the event loop is closing")
    return outcome_of_error(error)  # the handler awaited something that was cancelled


async def _forget_cancel(task: asyncio.Task[None]) -> None:
    """Take back requests to cancel, so that settling is not struck by one meant for the handler.

    One that was made while the handler itself ran is still to come: it is met here.
    """
    while task.uncancel():
        continue
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)


def _judged(run: Run, outcome: Outcome) -> Outcome:
    """What counts when a run ended by itself, saying ``outcome``, told to stop or not."""
    if run.verdict is None:
        return outcome
    if isinstance(run.verdict, (Lost, Cancelled)):
        return run.verdict
    return outcome if isinstance(outcome, (Done, Snoozed, Continued)) else run.verdict


def timed_out(after_s: float) -> Failed:
    """The outcome of a run that took too long (0: that was over before it began)."""
    said = f"stopped after {after_s:.3g} s" if after_s else "its deadline passed before it started"
    return Failed(failure_of(TaskTimeout(said)))
