"""Records and counters as they are shown."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any

from msgspec import Raw

from penstock.protocols.ojs.instants import duration_text, instant_text, of_ms
from penstock.protocols.ojs.record import Record, public_view
from penstock.protocols.ojs.room_left import Pressure
from penstock.protocols.ojs.views import LimitView, QueueView

__all__ = ["job_view", "limit_headers", "limit_view", "pressure_headers", "queue_view"]

Headers = list[tuple[str, str]]


def job_view(record: Record, **more: Any) -> Raw:
    """The job for everybody."""
    return public_view(record, **more)


def pressure_headers(pressure: Pressure | None) -> Headers:
    """Depth and bound of a bounded queue that fills up."""
    if pressure is None:
        return []
    return [
        ("x-ojs-queue-depth", str(pressure.depth)),
        ("x-ojs-queue-bound", str(pressure.bound)),
        ("x-ojs-queue-pressure", f"{min(pressure.ratio, 1.0):.2f}"),
    ]


def limit_headers(standing: LimitView, now: datetime) -> Headers:
    """Limit, what is left of it, and when it is whole again (Unix seconds)."""
    policy = standing.policy
    if policy.rate_limit is not None:
        limit, left = policy.rate_limit, policy.rate_limit - standing.started
    elif policy.concurrency is not None:
        limit, left = policy.concurrency, policy.concurrency - standing.active
    else:
        return []
    reset = max(standing.next_allowed_ms / 1000, now.timestamp())
    return [
        ("x-ratelimit-limit", str(limit)),
        ("x-ratelimit-remaining", str(max(left, 0))),
        ("x-ratelimit-reset", str(math.ceil(reset))),
    ]


def limit_view(standing: LimitView) -> dict[str, Any]:
    """One key: its limits, and how much of them is used."""
    policy = standing.policy
    shown: dict[str, Any] = {"key": standing.key, "waiting_count": standing.waiting}
    free_at = instant_text(of_ms(standing.next_allowed_ms)) if standing.next_allowed_ms else None
    if policy.concurrency is not None:
        shown["concurrency"] = {
            "limit": policy.concurrency,
            "active": standing.active,
            "available": max(policy.concurrency - standing.active, 0),
        }
    if policy.rate_limit is not None:
        shown["rate"] = {
            "limit": policy.rate_limit,
            "period": duration_text(timedelta(seconds=policy.rate_period_s)),
            "current_count": standing.started,
            "window_resets_at": free_at,
        }
    if policy.throttle_limit is not None:
        shown["throttle"] = {
            "limit": policy.throttle_limit,
            "period": duration_text(timedelta(seconds=policy.throttle_period_s)),
            "next_allowed_at": free_at,
        }
    return shown


def queue_view(view: QueueView, now: datetime) -> dict[str, Any]:
    """A queue with its exact counters, in both of the forms that clients look for."""
    status = "paused" if view.paused else "active"
    counts = view.counts
    stats = {
        "queue": view.name,
        "depth": view.depth,
        **{state: counts[state] for state in ("available", "active", "scheduled", "retryable")},
        "discarded": counts["discarded"],
    }
    return {
        "queue": {"name": view.name, "paused": view.paused, "depth": view.depth, **counts},
        "status": status,
        "stats": stats,
        "computed_at": instant_text(now),
    }
