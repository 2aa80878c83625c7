"""What ``/metrics`` tells: the queues as they are, and what happened since this instance began.

Counters count transitions as this instance sees them, its own and those of others, each once.
Labels are queues and job types, never ids, and no more of them than a monitoring system bears.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from penstock.core.errors import ConfigError
from penstock.protocols.ojs.instants import in_ms, instant

if TYPE_CHECKING:
    from penstock.protocols.ojs.engine import Engine
    from penstock.protocols.ojs.entry import Entry
    from penstock.protocols.ojs.record import Record

__all__ = ["Meters"]

_MAX_LABELS: Final = 1_000
_OTHERS: Final = ("_other", "_other")
_COUNTED: Final = {
    "enqueued": "enqueued",
    "scheduled": "enqueued",
    "pending": "enqueued",
    "completed": "completed",
    "retrying": "retried",
    "discarded": "failed",
    "cancelled": "cancelled",
    "expired": "expired",
}
_NAMES: Final = tuple(dict.fromkeys(_COUNTED.values()))


class Meters:
    """Counts from its making on. Needs ``prometheus-client``; raises `ConfigError` without."""

    def __init__(self, engine: Engine) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Histogram
        except ImportError as error:
            raise ConfigError(
                "metrics need the package prometheus-client",
                remedy="pip install 'penstock[server]'",
            ) from error
        self._engine = engine
        self._registry = CollectorRegistry()
        self._registry.register(_Standing(engine))
        labels = ("queue", "type")
        self._counters = {
            name: Counter(f"ojs_job_{name}", f"Jobs {name}.", labels, registry=self._registry)
            for name in _NAMES
        }
        self._duration = Histogram(
            "ojs_job_duration_seconds", "From fetch to ack.", labels, registry=self._registry
        )
        self._queue_time = Histogram(
            "ojs_job_queue_time_seconds",
            "From available to fetch.",
            labels,
            registry=self._registry,
        )
        self._seen: set[tuple[str, str]] = set()
        engine.shared.books.listen(self._heard)

    def text(self) -> bytes:
        """The exposition, as Prometheus reads it."""
        from prometheus_client import generate_latest

        return bytes(generate_latest(self._registry))

    def _heard(self, job_id: str, entry: Entry | None, record: Record | None) -> None:  # noqa: ARG002
        if record is None or entry is None or not record.tail or self._engine.shared.books.starting:
            return
        step = record.tail[-1]
        counted = _COUNTED.get(step.kind)
        if counted is not None:
            self._counters[counted].labels(*self._labels(entry)).inc()
        if step.kind == "completed":
            seconds = step.detail.get("duration_ms", 0) / 1000
            self._duration.labels(*self._labels(entry)).observe(seconds)
        elif step.kind == "started":
            waited = step.at_ms - in_ms(instant(record.job.enqueued_at))
            self._queue_time.labels(*self._labels(entry)).observe(max(waited, 0) / 1000)

    def _labels(self, entry: Entry) -> tuple[str, str]:
        labels = (entry.queue, entry.type)
        if labels not in self._seen:
            if len(self._seen) >= _MAX_LABELS:
                return _OTHERS
            self._seen.add(labels)
        return labels


class _Standing:
    """Gauges, read from the index when somebody asks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        gauge: Callable[..., Any] = GaugeMetricFamily
        index = self._engine.shared.books.index
        depth = gauge("ojs_queue_depth", "Jobs by queue and state.", labels=["queue", "state"])
        for queue in index.queues()[:_MAX_LABELS]:
            for state, count in index.counts(queue).items():
                depth.add_metric([queue, state], count)
        yield depth
        workers = gauge("ojs_workers_active", "Workers that beat.")
        workers.add_metric([], len(self._engine.workers.table))
        yield workers
        dead = gauge("ojs_dead_letters", "Dead letters.")
        dead.add_metric([], index.dead_letter_count)
        yield dead
