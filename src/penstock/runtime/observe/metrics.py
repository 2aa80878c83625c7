"""Metrics: counts and durations per task that cost well under a microsecond per run.

Kept in plain dictionaries; turned into Prometheus text only when somebody asks. The names
are a public promise: ``penstock_runs_total``, ``penstock_run_seconds``, and gauges that a
worker adds (``penstock_slots_free``, ``penstock_threads_zombie`` …).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.core.errors import Problem

__all__ = ["BUCKETS_S", "OTHER", "Metrics"]

BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 3600.0)

OTHER = "(other)"
_MAX_SERIES = 2_000

_Key = tuple[str, str, str]


class _Series:
    """One task on one protocol with one ending: how many, how long in total, and spread."""

    __slots__ = ("buckets", "count", "total_s")

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self.buckets = [0] * (len(BUCKETS_S) + 1)


class Metrics:
    """Counters of one worker, written on the loop's thread and read from any."""

    def __init__(self) -> None:
        self._series: dict[_Key, _Series] = {}
        self._gauges: dict[str, tuple[str, Callable[[], float]]] = {}

    def ran(self, protocol: str, task: str, kind: str, run_s: float) -> None:
        """Count one run that ended as ``kind``."""
        series = self._series.get((protocol, task, kind))
        if series is None:
            series = self._new_series(protocol, task, kind)
        series.count += 1
        series.total_s += run_s
        series.buckets[bisect_left(BUCKETS_S, run_s)] += 1

    def _new_series(self, protocol: str, task: str, kind: str) -> _Series:
        """Names of tasks come from the wire too: beyond a limit they share one series."""
        name = task if len(self._series) < _MAX_SERIES else OTHER
        return self._series.setdefault((protocol, name, kind), _Series())

    def gauge(self, name: str, meaning: str, read: Callable[[], float]) -> None:
        """Show ``read()`` as ``penstock_{name}`` whenever metrics are asked for."""
        self._gauges[name] = (meaning, read)

    def counts(self) -> dict[_Key, int]:
        """How often each (protocol, task, kind) happened."""
        return {key: series.count for key, series in self._series.items()}

    def render(self) -> bytes:
        """All of it as Prometheus text. Raises `Problem` without the extra ``metrics``."""
        try:
            from prometheus_client import CollectorRegistry, generate_latest
        except ImportError as error:
            raise Problem(
                "metrics need the package prometheus-client",
                remedy="pip install 'penstock[metrics]'",
                code="extra.missing",
            ) from error
        registry = CollectorRegistry()
        registry.register(self)
        return bytes(generate_latest(registry))

    def collect(self) -> Iterator[Any]:
        """What prometheus-client calls: also usable in a registry of one's own."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        labels = ["protocol", "task", "outcome"]
        runs = CounterMetricFamily("penstock_runs", "Runs that ended, by outcome.", labels=labels)
        spans = HistogramMetricFamily("penstock_run_seconds", "Time in the handler.", labels=labels)
        for key, series in list(self._series.items()):
            runs.add_metric(key, series.count)
            spans.add_metric(key, list(_cumulated(series.buckets)), sum_value=series.total_s)
        yield runs
        yield spans
        for name, (meaning, read) in list(self._gauges.items()):
            yield GaugeMetricFamily(f"penstock_{name}", meaning, value=read())


def _cumulated(buckets: Iterable[int]) -> Iterator[tuple[str, int]]:
    below = 0
    for bound, count in zip([*map(str, BUCKETS_S), "+Inf"], buckets, strict=True):
        below += count
        yield bound, below
