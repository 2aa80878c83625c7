"""A `Context` without a worker: every answer is chosen, everything that is said is kept."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from datetime import timedelta
from typing import Any

from penstock.core import codec
from penstock.core.context import Context
from penstock.core.delivery import Progress
from penstock.core.events import now_utc
from penstock.core.invocation import Checkpoint, Invocation, ProtocolName

__all__ = ["HandlerContext", "a_context"]


class HandlerContext(Context):
    """What a handler under test is given. ``reported`` and ``checkpoints`` are in their order."""

    __slots__ = ("_desk",)

    def __init__(self, invocation: Invocation, desk: _Desk) -> None:
        super().__init__(invocation, desk)
        self._desk = desk

    @property
    def reported(self) -> list[Progress]:
        return self._desk.reported

    @property
    def checkpoints(self) -> list[Any]:
        """What was kept, as the next attempt would find it: decoded from JSON."""
        return self._desk.checkpoints

    def lose(self, reason: str = "the lease was lost") -> None:
        """From now on the handler should stop: ``ctx.lost`` is true."""
        self._desk.stopped = reason


def a_context(
    task: str = "task",
    *,
    run_id: str = "run",
    attempt: int = 1,
    delivery: int | None = None,
    max_attempts: int | None = None,
    saved: Any = None,
    iteration: int = 0,
    remaining: timedelta | float | None = None,
    protocol: ProtocolName = "natq",
) -> HandlerContext:
    """A context as the ``attempt``-th execution would get it.

    ``saved`` is what an earlier attempt left with ``ctx.checkpoint``; ``remaining`` is the time
    until the deadline. Without ``delivery`` the work was never handed out in vain.
    """
    left = timedelta(seconds=remaining) if isinstance(remaining, (int, float)) else remaining
    invocation = Invocation(
        protocol=protocol,
        task=task,
        work_id=run_id,
        attempt=attempt,
        delivery=attempt if delivery is None else delivery,
        max_attempts=max_attempts,
        iteration=iteration,
        checkpoint=None if saved is None else Checkpoint(saved, iteration),
        deadline_at=None if left is None else now_utc() + left,
    )
    return HandlerContext(invocation, _Desk())


class _Desk:
    """The `Backchannel` of a context that no worker made."""

    def __init__(self) -> None:
        self.stopped = ""
        self.worker_id = "test"
        self.reported: list[Progress] = []
        self.checkpoints: list[Any] = []

    def note(self, progress: Progress) -> None:
        self.reported.append(progress)

    def save(self, value: Any) -> Awaitable[None]:
        self.checkpoints.append(codec.decode(codec.encode(value)))
        return _Kept()


class _Kept:
    """Has been kept already; may be awaited, and need not be."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield
