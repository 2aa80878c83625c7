"""Retry policies of jobs: how often, how long in between, and which errors never.

The policy travels with the job and wins over every worker's. Delays are drawn once and kept
on the record, so that what is answered, stored and reported is one number.
"""

from __future__ import annotations

import math
from datetime import timedelta
from random import Random
from typing import Any, Final

from msgspec import Struct

from penstock.protocols.ojs.fields import Fields
from penstock.protocols.ojs.instants import duration, duration_text

__all__ = ["DEFAULT_RETRY", "RetryPolicy", "delay_after", "never_retried", "parse_retry"]

STRATEGIES: Final = ("exponential", "linear", "constant", "none", "polynomial")
EXHAUSTIONS: Final = ("discard", "dead_letter")
_STRATEGY_NAMES: Final = ("backoff_strategy", "backoff_type", "strategy", "backoff")
_INITIAL_MS: Final = ("initial_interval_ms", "initial_delay_ms", "base_delay_ms")
_MAX_ATTEMPTS: Final = 1_000_000


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """``max_attempts`` counts executions, the first included; 0 and 1 both mean no retry."""

    max_attempts: int = 3
    initial_interval: str = "PT1S"
    backoff_coefficient: float = 2.0
    max_interval: str = "PT5M"
    jitter: bool = True
    non_retryable_errors: tuple[str, ...] = ()
    on_exhaustion: str = "discard"
    backoff_strategy: str = "exponential"


DEFAULT_RETRY: Final = RetryPolicy()


def parse_retry(fields: Fields, base: RetryPolicy = DEFAULT_RETRY) -> RetryPolicy:
    """A policy from a (partial) object, over ``base``. Unknown members are ignored.

    Raises `Refused` with ``validation_error`` and the name of the member.
    """
    fields = Fields(fields.raw, fields.path, "validation_error")
    initial, ceiling = _intervals(fields, base)
    attempts = fields.whole("max_attempts", 0, _MAX_ATTEMPTS)
    coefficient = fields.number("backoff_coefficient")
    if coefficient is not None and not (coefficient >= 1.0 and math.isfinite(coefficient)):
        raise fields.bad("backoff_coefficient", f"must be 1.0 or more, not {coefficient}")
    strategy = next((s for n in _STRATEGY_NAMES if (s := _strategy(fields, n))), None)
    jitter = fields.flag("jitter")
    never = fields.texts("non_retryable_errors")
    return RetryPolicy(
        max_attempts=base.max_attempts if attempts is None else attempts,
        initial_interval=initial,
        backoff_coefficient=base.backoff_coefficient if coefficient is None else coefficient,
        max_interval=ceiling,
        jitter=base.jitter if jitter is None else jitter,
        non_retryable_errors=base.non_retryable_errors if never is None else never,
        on_exhaustion=fields.choice("on_exhaustion", EXHAUSTIONS) or base.on_exhaustion,
        backoff_strategy=strategy or base.backoff_strategy,
    )


def delay_after(policy: RetryPolicy, failures: int, dice: Random) -> timedelta:
    """How long to wait after the ``failures``-th failure (1-based), jitter drawn; at most the
    policy's ceiling, never negative."""
    first = duration(policy.initial_interval).total_seconds()
    ceiling = duration(policy.max_interval).total_seconds()
    count = max(failures, 1)
    match policy.backoff_strategy:
        case "linear":
            seconds = first * count
        case "constant":
            seconds = first
        case "none":
            return timedelta(0)
        case "polynomial":
            seconds = first * _power(count, policy.backoff_coefficient)
        case _:
            seconds = first * _power(policy.backoff_coefficient, count - 1)
    seconds = min(seconds, ceiling)
    if policy.jitter:
        seconds = min(seconds * dice.uniform(0.5, 1.5), ceiling)
    return timedelta(milliseconds=round(seconds * 1000))


def never_retried(policy: RetryPolicy, names: tuple[str, ...]) -> bool:
    """Whether one of an error's names is listed; ``auth.*`` covers ``auth.x`` but not ``auth``."""
    for entry in policy.non_retryable_errors:
        stem = entry[:-1] if entry.endswith(".*") else None
        if any(name == entry or (stem and name.startswith(stem)) for name in names):
            return True
    return False


def _power(base: float, exponent: float) -> float:
    try:
        return float(base**exponent)
    except OverflowError:
        return math.inf


def _strategy(fields: Fields, name: str) -> str | None:
    """One of the spellings; ``backoff`` may also be an object, which says nothing here."""
    value: Any = fields.value(name)
    if name == "backoff" and isinstance(value, dict):
        return None
    return fields.choice(name, STRATEGIES)


def _intervals(fields: Fields, base: RetryPolicy) -> tuple[str, str]:
    initial = _interval(fields, "initial_interval", _INITIAL_MS)
    ceiling = _interval(fields, "max_interval", ("max_interval_ms",))
    if initial is not None and duration(initial) <= timedelta(0):
        raise fields.bad("initial_interval", "must be longer than zero")
    chosen = (initial or base.initial_interval, ceiling or base.max_interval)
    if duration(chosen[0]) <= duration(chosen[1]):
        return chosen
    if initial is not None and ceiling is not None:
        raise fields.bad("max_interval", "must not be shorter than initial_interval")
    given = initial or ceiling or chosen[0]  # one given, at odds with the other's default
    return given, given


def _interval(fields: Fields, name: str, in_ms: tuple[str, ...]) -> str | None:
    if name in fields:
        length = fields.length(name)
        return None if length is None else _written(fields, name, length)
    for alias in in_ms:
        if (ms := fields.whole(alias, 0, 10**15)) is not None:
            return duration_text(timedelta(milliseconds=ms))
    return None


def _written(fields: Fields, name: str, length: timedelta) -> str:
    text = fields.text(name) or ""
    return text if text.startswith("P") else duration_text(length)
