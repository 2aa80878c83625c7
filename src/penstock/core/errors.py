"""Errors that teach: what happened, with the facts, and what to do next.

Each class has a stable, searchable ``code``. Expected outcomes (a duplicate, a full
queue) are return values elsewhere; an exception here means somebody must look.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any

__all__ = [
    "BadInput",
    "BadResult",
    "ConfigError",
    "PenstockError",
    "Problem",
    "TaskFailed",
    "UnknownName",
    "Waited",
    "nearest",
    "reason_of",
]


class PenstockError(Exception):
    """Something needs a person's attention; ``str()`` of it says what to try."""

    code = "penstock"
    remedy = ""

    def __init__(self, message: str, *, remedy: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if remedy is not None:
            self.remedy = remedy
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        head = f"{self.message} [{self.code}]"
        return f"{head}\n  try: {self.remedy}" if self.remedy else head

    def __reduce__(self) -> tuple[Any, ...]:  # arguments and message differ: pickle as it is
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[PenstockError], args: Any, state: dict[str, Any]) -> PenstockError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class ConfigError(PenstockError):
    """A setting, option or registration cannot be used as given."""

    code = "config"


class BadInput(PenstockError):
    """An input does not fit what a task declares; ``path`` names the field (``$.width``)."""

    code = "input.invalid"

    def __init__(self, message: str, *, path: str = "$", remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.path = path


class BadResult(PenstockError):
    """What a handler returned cannot be said in JSON: its own mistake, whatever the input."""

    code = "result.invalid"
    remedy = "return plain data, dataclasses or Structs, with finite numbers"


class Problem(PenstockError):
    """The environment refused: a missing binary, a busy port, a server of the wrong version."""

    code = "environment"


class TaskFailed(PenstockError):
    """The task answered with an error: the work failed, not the way to it."""

    code = "task.failed"

    def __init__(
        self, task: str, run_id: str, status: int, error: str, data: object = None
    ) -> None:
        super().__init__(f"{task} answered {status}: {error or 'no reason given'}")
        self.task = task
        self.run_id = run_id
        self.status = status
        self.error = error
        self.data = data


class Waited(PenstockError, TimeoutError):
    """The time given for an answer is over; the work itself may still go on."""

    code = "wait.timeout"


class UnknownName(PenstockError):
    """A name that nobody declared; the remedy suggests the nearest one."""

    code = "name.unknown"

    def __init__(self, kind: str, name: str, known: Collection[str]) -> None:
        near = nearest(name, known)
        hint = f"did you mean {near!r}?" if near else _known(known)
        super().__init__(f"{kind} {name!r} is not known", remedy=hint, code=f"{kind}.unknown")
        self.name = name


def reason_of(fault: BaseException) -> str:
    """Why a connection failed, in the same words on every event loop.

    >>> reason_of(ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 4222)"))
    'Connection refused'
    """
    if isinstance(fault, TimeoutError):
        return "no answer in time"
    if isinstance(fault, OSError) and (fault.errno or 0) > 0:  # what resolvers say is negative
        return os.strerror(fault.errno or 0)
    return getattr(fault, "strerror", None) or str(fault) or type(fault).__name__


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to ``name``, if any is close enough to be meant."""
    near = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return near[0] if near else None


def _known(known: Collection[str]) -> str:
    if not known:
        return "nothing of that kind is declared yet"
    return "known: " + ", ".join(sorted(known)[:12])
