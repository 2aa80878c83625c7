"""Unique jobs: what makes two jobs the same, and what happens to the second one.

The key is a hash over the chosen dimensions in canonical JSON. A job is a duplicate when a
job with its key is in one of the states, and within the period, that the *new* request names.
Pure decisions; the lock that makes them final is the store's.
"""

from __future__ import annotations

import hashlib
import math
import unicodedata
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from penstock.protocols.ojs.fields import Fields, members
from penstock.protocols.ojs.instants import duration
from penstock.protocols.ojs.names import STATES
from penstock.protocols.ojs.refusal import Refusal, invalid

__all__ = [
    "DEFAULT_STATES",
    "Conflict",
    "Fresh",
    "Holder",
    "Ignore",
    "Reject",
    "Replace",
    "UniquePolicy",
    "canonical",
    "decide",
    "duplicate",
    "is_remembered",
    "parse_unique",
    "unique_key",
]

DIMENSIONS: Final = ("type", "queue", "args", "meta")
DEFAULT_STATES: Final = ("available", "active", "scheduled", "retryable", "pending")
STRATEGIES: Final = ("reject", "ignore", "replace", "replace_except_schedule")
OnConflict = Literal["reject", "ignore", "replace", "replace_except_schedule"]


class UniquePolicy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    keys: tuple[str, ...] = ("type",)
    args_keys: tuple[str, ...] = ()
    meta_keys: tuple[str, ...] = ()
    period: str = ""
    states: tuple[str, ...] = DEFAULT_STATES
    on_conflict: OnConflict = "reject"


class Holder(Struct, frozen=True):
    """The job that has the key now, as far as a decision needs it."""

    job_id: str
    state: str
    created_at: datetime
    scheduled_at: str = ""


class Fresh(Struct, frozen=True):
    """Nobody is in the way."""


class Reject(Struct, frozen=True):
    holder: Holder


class Ignore(Struct, frozen=True):
    """The existing job is the answer."""

    holder: Holder


class Replace(Struct, frozen=True):
    """Cancel the holder in favour of the new job, which takes over ``scheduled_at`` if any."""

    holder: Holder
    scheduled_at: str = ""


Conflict = Fresh | Reject | Ignore | Replace


def parse_unique(fields: Fields) -> UniquePolicy:
    """The policy in ``options.unique``. Raises `Refused` naming the member that does not fit."""
    keys, named = _keys(fields)
    args_keys = fields.texts("args_keys") or named
    meta_keys = fields.texts("meta_keys") or ()
    if args_keys and "args" not in keys:
        raise fields.bad("args_keys", "needs args in keys")
    if "meta" in keys and not meta_keys:
        raise fields.bad("meta_keys", "is required when keys has meta")
    states = fields.texts("states")
    for state in states or ():
        if state not in STATES:
            raise fields.bad("states", f"{state!r} is not a state")
    period = fields.length("period")
    if period is not None and period <= timedelta(0):
        raise fields.bad("period", "must be longer than zero")
    strategy: Any = fields.choice("on_conflict", STRATEGIES)
    return UniquePolicy(
        keys=keys,
        args_keys=tuple(sorted(set(args_keys))),
        meta_keys=tuple(sorted(set(meta_keys))),
        period=_period_text(fields) if period is not None else "",
        states=states if states is not None else DEFAULT_STATES,
        on_conflict=strategy or "reject",
    )


def unique_key(
    policy: UniquePolicy, *, job_type: str, queue: str, args: Raw, meta: Raw, tenant: str = ""
) -> str:
    """SHA-256 over the canonical JSON of the chosen dimensions (and the tenant, if any)."""
    chosen: dict[str, Any] = {"type": job_type}
    if "queue" in policy.keys:
        chosen["queue"] = queue
    if "args" in policy.keys:
        chosen["args"] = _args(policy, msgspec.json.decode(args))
    if "meta" in policy.keys:
        kept = msgspec.json.decode(meta)
        chosen["meta"] = {key: kept[key] for key in policy.meta_keys if key in kept}
    if tenant:
        chosen["tenant"] = tenant
    return hashlib.sha256(canonical(chosen)).hexdigest()


def decide(policy: UniquePolicy, holder: Holder | None, now: datetime) -> Conflict:
    """What happens to a new job when ``holder`` has its key."""
    if holder is None or not in_the_way(policy, holder, now):
        return Fresh()
    match policy.on_conflict:
        case "ignore":
            return Ignore(holder)
        case "replace":
            return Replace(holder)
        case "replace_except_schedule":
            kept = holder.scheduled_at if holder.state == "scheduled" else ""
            return Replace(holder, kept)
        case _:
            return Reject(holder)


def in_the_way(policy: UniquePolicy, holder: Holder, now: datetime) -> bool:
    if holder.state not in policy.states:
        return False
    return not policy.period or now < holder.created_at + duration(policy.period)


def is_remembered(policy: Raw, state: str, created_at: datetime, now: datetime) -> bool:
    """Whether a finished job must outlive its retention, because by its own policy it is still
    in the way of equal ones."""
    chosen = parse_unique(Fields(members(policy, "unique"), "unique"))
    if not chosen.period or state not in chosen.states:
        return False
    return now < created_at + duration(chosen.period)


def duplicate(holder: Holder, key: str = "") -> Refusal:
    """The 409 for a job that is there already."""
    details = {"existing_job_id": holder.job_id, "existing_job_state": holder.state}
    if key:
        details["unique_key"] = key
    what = "the same unique key" if key else "this id"
    return Refusal("duplicate", f"A job with {what} exists: {holder.job_id}", details)


# Canonical JSON -----------------------------------------------------------------------


def canonical(value: Any) -> bytes:
    """``value`` in RFC 8785 form with strings in NFC: equal values, equal bytes.

    >>> canonical({"b": 1.0, "a": [1, "x"]})
    b'{"a":[1,"x"],"b":1}'
    """
    return _written(value).encode("utf-8", "surrogatepass")


def _written(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, Mapping):
        named = sorted((unicodedata.normalize("NFC", k), v) for k, v in _items(value))
        named.sort(key=lambda pair: pair[0].encode("utf-16-be"))
        return "{" + ",".join(f"{_quoted(k)}:{_written(v)}" for k, v in named) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_written, value)) + "]"
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 2**53:
        return str(value)  # beyond what a double holds: keep every digit apart
    return msgspec.json.encode(value).decode()


def _items(value: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return list(value.items())


def _quoted(text: str) -> str:
    return msgspec.json.encode(unicodedata.normalize("NFC", text)).decode()


def _number(value: float) -> str:
    """ECMAScript's shortest form, as RFC 8785 asks."""
    if not math.isfinite(value):
        raise ValueError("not a JSON number")
    if value.is_integer() and abs(value) <= 2**53:
        return str(int(value))
    mantissa, _, exponent = repr(value).partition("e")
    if not exponent:
        return mantissa.removesuffix(".0")
    power = int(exponent)
    digits = mantissa.lstrip("-").replace(".", "").removesuffix("0") or "0"
    sign = "-" if value < 0 else ""
    if -7 < power < 0:
        return f"{sign}0.{'0' * (-power - 1)}{digits}"
    if 0 < power < 21:
        return f"{sign}{digits.ljust(power + 1, '0')}"
    return f"{mantissa.removesuffix('.0')}e{'+' if power > 0 else '-'}{abs(power)}"


# Reading ------------------------------------------------------------------------------


def _keys(fields: Fields) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The dimensions, and argument names where the older spelling ``key`` lists those."""
    given = fields.texts("keys")
    if given is not None:
        for key in given:
            if key not in DIMENSIONS:
                raise fields.bad("keys", f"{key!r} is not one of {', '.join(DIMENSIONS)}")
        return _ordered(given), ()
    older = fields.texts("key")
    if older is None:
        return ("type",), ()
    if all(key in DIMENSIONS for key in older):
        return _ordered(older), ()
    return ("type", "args"), tuple(older)


def _ordered(keys: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(d for d in DIMENSIONS if d == "type" or d in keys)


def _period_text(fields: Fields) -> str:
    return fields.text("period") or ""


def _args(policy: UniquePolicy, args: list[Any]) -> Any:
    if not policy.args_keys:
        return args
    found: dict[str, list[Any]] = {}
    for element in args:
        if isinstance(element, dict):
            for key in policy.args_keys:
                if key in element:
                    found.setdefault(key, []).append(element[key])
    for key in policy.args_keys:
        if key not in found:
            raise invalid("options.unique.args_keys", f"{key!r} is in no argument")
    return found
