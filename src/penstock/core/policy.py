"""Retry policies: how often, how long in between, and which errors never.

``max_attempts`` is the total number of executions, everywhere in Penstock; the wires
that count retries instead convert in their ``wire.py``. Chance comes in as an argument.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from random import Random

from penstock.core.errors import ConfigError
from penstock.core.outcome import After, Failure, Verdict, Word

__all__ = ["Backoff", "BackoffKind", "GiveUp", "RetryIn", "RetryPolicy", "decide"]

_MAX_EXPONENT = 64  # 2.0 ** 64 seconds is past every ceiling; larger powers only overflow


class BackoffKind(StrEnum):
    CONSTANT = "constant"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays between attempts. ``jitter`` 0.2 means up to 20 % sooner or later."""

    kind: BackoffKind = BackoffKind.EXPONENTIAL
    base: timedelta = timedelta(seconds=2)
    factor: float = 2.0
    ceiling: timedelta = timedelta(seconds=60)
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if self.base < timedelta(0) or self.ceiling < timedelta(0):
            raise ConfigError("a backoff cannot be negative", remedy="give a base of 0 or more")
        if not 0 <= self.jitter <= 1:
            raise ConfigError("jitter is a fraction", remedy="give a number from 0 to 1")
        if not 1 <= self.factor < math.inf:
            raise ConfigError(
                f"a backoff factor of {self.factor:g} does not grow", remedy="give 1 or more"
            )

    def delay(self, failures: int, dice: Random | None = None) -> timedelta:
        """How long to wait after the ``failures``-th failure (1-based); never over the ceiling."""
        count = max(failures, 1)
        match self.kind:
            case BackoffKind.CONSTANT:
                seconds = self.base.total_seconds()
            case BackoffKind.LINEAR:
                seconds = self.base.total_seconds() * count
            case BackoffKind.EXPONENTIAL:
                seconds = self.base.total_seconds() * _power(self.factor, count - 1)
        if self.jitter and dice is not None:
            seconds *= dice.uniform(1 - self.jitter, 1 + self.jitter)
        return timedelta(seconds=min(seconds, self.ceiling.total_seconds()))


def _power(factor: float, exponent: int) -> float:
    try:
        return factor ** min(exponent, _MAX_EXPONENT)
    except OverflowError:  # past every ceiling, too
        return sys.float_info.max


@dataclass(frozen=True, slots=True)
class RetryIn:
    delay: timedelta


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """``max_attempts`` executions in total (``None``: no limit).

    ``never`` and ``by_error`` name exception classes, by class name or dotted path; a
    base class covers what derives from it, and the nearest class wins.
    """

    max_attempts: int | None = None
    backoff: Backoff = field(default_factory=Backoff)
    never: frozenset[str] = frozenset()
    by_error: Mapping[str, RetryPolicy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_attempts is not None and self.max_attempts < 1:
            raise ConfigError(
                f"max_attempts is {self.max_attempts}, but every task runs at least once",
                remedy="give 1 or more, or None for no limit",
            )

    @classmethod
    def of_retries(cls, retries: int | None, backoff: Backoff | None = None) -> RetryPolicy:
        """The policy that ``retries=N`` means: at most N + 1 executions."""
        if retries is not None and retries < 0:
            raise ConfigError("retries cannot be negative", remedy="give 0 or more")
        limit = None if retries is None else retries + 1
        return cls(max_attempts=limit, backoff=backoff or Backoff())

    def limited(self, max_attempts: int | None) -> RetryPolicy:
        """This policy with the limit that came with the work, where one did.

        It bounds the policies of single errors too; those that allow less still do.
        """
        if max_attempts is None:
            return self
        most = max(max_attempts, 1)  # what was handed out has run once already
        by_error = {
            name: special
            if special.max_attempts is None
            else special.limited(min(special.max_attempts, most))
            for name, special in self.by_error.items()
        }
        return replace(self, max_attempts=most, by_error=by_error)


def decide(
    policy: RetryPolicy,
    failure: Failure,
    verdict: Verdict,
    *,
    attempt: int,
    dice: Random | None = None,
) -> RetryIn | GiveUp:
    """What happens to work whose ``attempt``-th execution just failed.

    A handler that names a delay gets it, but never beyond the limit of attempts.
    """
    if verdict is Word.NEVER:
        return GiveUp("not to be retried")
    chosen = _policy_for(policy, failure.lineage)
    if chosen is None:
        return GiveUp(f"{failure.type} is never retried")
    if chosen.max_attempts is not None and attempt >= chosen.max_attempts:
        return GiveUp(f"gave up after {attempt} attempts")
    if isinstance(verdict, After):
        return RetryIn(verdict.delay)
    return RetryIn(chosen.backoff.delay(attempt, dice))


def _policy_for(policy: RetryPolicy, lineage: tuple[str, ...]) -> RetryPolicy | None:
    for name in lineage:
        if name in policy.never:
            return None
        if name in policy.by_error:
            special = policy.by_error[name]
            return (
                special
                if special.max_attempts is not None
                else special.limited(policy.max_attempts)
            )
    return policy
