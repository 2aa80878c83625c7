"""Outcomes: what a handler said, or what befell it.

A handler returns a value, raises any exception, or says one of four verbs, raised or
returned: `Retry`, `Reject`, `Snooze`, `Continue`. The runtime turns whatever happened
into one of seven values, and each protocol's ``rules.py`` maps those to its own acks.
"""

from __future__ import annotations

import traceback
from datetime import timedelta
from enum import Enum
from typing import Any

from msgspec import Struct

from penstock.core.errors import BadInput, BadResult, PenstockError

__all__ = [
    "After",
    "Cancelled",
    "Continue",
    "Continued",
    "Done",
    "Failed",
    "Failure",
    "HandlerSays",
    "Interrupted",
    "Lost",
    "Outcome",
    "Reject",
    "Retry",
    "Snooze",
    "Snoozed",
    "TaskTimeout",
    "Verdict",
    "Word",
    "failure_of",
    "outcome_of_error",
    "outcome_of_value",
    "span",
]

_MAX_TRACE_CHARS = 8_000
_MAX_MESSAGE_CHARS = 4_000


def span(value: timedelta | float | None) -> timedelta:
    """A length of time from seconds or a timedelta; never negative, ``None`` is zero."""
    if value is None:
        return timedelta(0)
    length = value if isinstance(value, timedelta) else timedelta(seconds=value)
    return max(length, timedelta(0))


# What a handler says ------------------------------------------------------------------


class HandlerSays(Exception):
    """Base of the verbs a handler may raise or return."""

    def __reduce__(self) -> tuple[Any, ...]:  # arguments and message differ: pickle as it is
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[HandlerSays], args: Any, state: dict[str, Any]) -> HandlerSays:
    verb = kind.__new__(kind, *args)
    verb.__dict__.update(state)
    return verb


class Retry(HandlerSays):
    """Run this again, after ``after`` if given, else as the policy says. Counts an attempt."""

    def __init__(
        self,
        message: str = "the handler asked for a retry",
        *,
        after: timedelta | float | None = None,
        code: str = "retry",
        status: int | None = None,
        data: Any = None,
    ) -> None:
        super().__init__(message)
        self.message, self.code, self.status, self.data = message, code, status, data
        self.after = None if after is None else span(after)


class Reject(HandlerSays):
    """This input can never succeed: do not retry. ``status`` is for wires that carry one."""

    def __init__(
        self,
        message: str = "rejected",
        *,
        code: str = "rejected",
        status: int | None = None,
        data: Any = None,
    ) -> None:
        super().__init__(message)
        self.message, self.code, self.status, self.data = message, code, status, data


class Snooze(HandlerSays):
    """Not now: come back after ``after``. Costs no attempt; ``checkpoint`` is kept for then."""

    def __init__(self, after: timedelta | float, *, checkpoint: Any = None) -> None:
        super().__init__(f"snoozed for {span(after).total_seconds():g} s")
        self.after, self.checkpoint = span(after), checkpoint


class Continue(HandlerSays):
    """One iteration is done: save ``checkpoint`` and call the handler again with it."""

    def __init__(self, checkpoint: Any) -> None:
        super().__init__("continues")
        self.checkpoint = checkpoint


class TaskTimeout(Exception):
    """The handler ran longer than it may."""


# What became of it --------------------------------------------------------------------


class Failure(Struct, frozen=True):
    """Why something failed, in the words of every wire. ``lineage``: the error's class names."""

    code: str
    type: str
    message: str
    trace: str = ""
    status: int | None = None
    data: Any = None
    lineage: tuple[str, ...] = ()


class Word(Enum):
    """Verdicts on a failure that need no number."""

    BY_POLICY = "by_policy"
    NEVER = "never"


class After(Struct, frozen=True):
    """Verdict: once more, after this delay."""

    delay: timedelta


Verdict = Word | After


class Done(Struct, frozen=True):
    """The handler returned. ``status`` only where the handler chose one (natq)."""

    value: Any = None
    status: int | None = None


class Failed(Struct, frozen=True):
    failure: Failure
    verdict: Verdict = Word.BY_POLICY


class Snoozed(Struct, frozen=True):
    after: timedelta
    checkpoint: Any = None


class Continued(Struct, frozen=True):
    checkpoint: Any


class Interrupted(Struct, frozen=True):
    """A shutdown came in between: the work is given back and no attempt is spent."""

    reason: str = "the worker is stopping"


class Cancelled(Struct, frozen=True):
    """Somebody asked for it to stop."""

    reason: str = "cancelled"


class Lost(Struct, frozen=True):
    """The lease is gone: nothing may be written that another may have written."""

    reason: str = "the lease was lost"


Outcome = Done | Failed | Snoozed | Continued | Interrupted | Cancelled | Lost


def outcome_of_value(value: Any) -> Outcome:
    """What a returned value means; verbs may be returned as well as raised.

    A handler that wants a status of its own returns ``Done(value, status=201)``.
    """
    if isinstance(value, Done):
        return value
    if isinstance(value, HandlerSays):
        return outcome_of_error(value)
    return Done(value)


def outcome_of_error(error: BaseException) -> Outcome:
    """What a raised exception means. Cancellation is the caller's to judge, not ours."""
    match error:
        case Snooze(after=after, checkpoint=checkpoint):
            return Snoozed(after, checkpoint)
        case Continue(checkpoint=checkpoint):
            return Continued(checkpoint)
        case Retry(after=after):
            return Failed(failure_of(error), Word.BY_POLICY if after is None else After(after))
        case Reject() | BadInput():
            return Failed(failure_of(error), Word.NEVER)
        case _:
            return Failed(failure_of(error))


def failure_of(error: BaseException) -> Failure:
    """``error`` as a value that can cross a wire; its message is what was raised, unadorned."""
    kind = type(error)
    said = isinstance(error, (Retry, Reject))
    return Failure(
        code=_code_of(error),
        type=kind.__name__,
        message=_text_of(error),
        trace="" if said else _trace_of(error),
        status=getattr(error, "status", None) if said else None,
        data=getattr(error, "data", None) if said else None,
        lineage=_lineage(kind),
    )


def _code_of(error: BaseException) -> str:
    if isinstance(error, TaskTimeout):
        return "timeout"
    if isinstance(error, (PenstockError, Retry, Reject)):
        return error.code
    return "handler_error"


def _text_of(error: BaseException) -> str:
    if isinstance(error, BadInput):
        text = f"{error.message} at {error.path}" if error.path != "$" else error.message
        if error.remedy and error.path not in error.remedy:
            text += f": {error.remedy}"
    else:
        text = error.message if isinstance(error, BadResult) else _shown(error)
    return _sayable(text[:_MAX_MESSAGE_CHARS])


def _shown(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failed:  # noqa: BLE001 - a broken __str__ is the handler's own code
        return f"<its message cannot be shown: {type(failed).__name__}>"


def _trace_of(error: BaseException) -> str:
    return _sayable("".join(traceback.format_exception(error))[-_MAX_TRACE_CHARS:])


def _sayable(text: str) -> str:
    """``text`` without lone surrogates, which file names bring along and no JSON can say."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


_lineages: dict[type, tuple[str, ...]] = {}


def _lineage(kind: type[BaseException]) -> tuple[str, ...]:
    known = _lineages.get(kind)
    if known is None:
        names = [c for c in kind.__mro__ if c not in (object, BaseException)]
        known = tuple(n for c in names for n in (c.__name__, f"{c.__module__}.{c.__qualname__}"))
        _lineages[kind] = known
    return known
