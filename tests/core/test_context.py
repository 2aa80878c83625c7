"""Context: what a handler sees of its work, and how it reports."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from penstock.core.context import Context, LeaseLost
from penstock.core.delivery import Progress
from penstock.core.events import now_utc
from penstock.core.invocation import MISSING, Checkpoint, Invocation


async def nothing() -> None: ...


@dataclass
class Notebook:
    """A backchannel that writes down what it is told."""

    stopped: str = ""
    worker_id: str = "w-1"
    notes: list[Progress] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)

    def note(self, progress: Progress) -> None:
        self.notes.append(progress)

    def save(self, value: Any) -> Awaitable[None]:
        self.kept.append(value)
        return nothing()


def a_context(back: Notebook | None = None, **known: Any) -> Context:
    invocation = Invocation(protocol="ojs", task="resize", work_id="run-1", **known)
    return Context(invocation, back or Notebook())


def test_a_context_tells_ids_and_counts() -> None:
    ctx = a_context(attempt=2, delivery=5, max_attempts=3, iteration=1, meta={"a": 1})

    assert (ctx.task, ctx.run_id, ctx.protocol, ctx.worker_id) == ("resize", "run-1", "ojs", "w-1")
    assert (ctx.attempt, ctx.delivery, ctx.max_attempts, ctx.iteration) == (2, 5, 3, 1)
    assert ctx.meta == {"a": 1}


def test_remaining_ends_at_zero() -> None:
    assert a_context().remaining() is None
    assert a_context(deadline_at=now_utc() - timedelta(hours=1)).remaining() == timedelta(0)
    ahead = a_context(deadline_at=now_utc() + timedelta(hours=1)).remaining()
    assert ahead is not None
    assert timedelta(minutes=59) < ahead <= timedelta(hours=1)


def test_a_lost_run_says_so_and_why() -> None:
    back = Notebook()
    ctx = a_context(back)
    ctx.raise_if_lost()
    assert not ctx.lost

    back.stopped = "the lease was lost"

    assert ctx.lost
    with pytest.raises(LeaseLost, match="the lease was lost"):
        ctx.raise_if_lost()


def test_progress_is_handed_on() -> None:
    back = Notebook()

    a_context(back).progress(1, 3, "loading")

    assert back.notes == [Progress(1, 3, "loading")]


async def test_a_checkpoint_is_kept_and_found_by_the_next_attempt() -> None:
    back = Notebook()

    await a_context(back).checkpoint({"page": 2})

    assert back.kept == [{"page": 2}]
    assert a_context(checkpoint=Checkpoint(back.kept[0])).saved == {"page": 2}
    assert a_context().saved is None


def test_every_log_line_carries_the_ids(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="penstock.task"):
        a_context().log.info("half way", extra={"page": 2})

    (line,) = caplog.records
    ids = {key: line.__dict__[key] for key in ("workerId", "taskId", "runId", "page")}
    assert ids == {"workerId": "w-1", "taskId": "resize", "runId": "run-1", "page": 2}


def test_missing_is_false_and_shows_itself() -> None:
    assert not MISSING
    assert repr(MISSING) == "MISSING"
    assert Invocation(protocol="natq", task="t", work_id="w").body is MISSING
