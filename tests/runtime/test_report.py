"""Events, metrics, traces and logs: what the world is told, and that telling breaks nothing."""

from __future__ import annotations

import io
import json
import logging
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from penstock import Context, Continue, Reject, Snooze
from penstock.core.delivery import Gone, Settled, SettledKind, Unknown
from penstock.core.events import EventKind, now_utc
from penstock.core.invocation import Invocation
from penstock.core.outcome import (
    Cancelled,
    Continued,
    Done,
    Failed,
    Failure,
    Interrupted,
    Lost,
    Snoozed,
    Word,
)
from penstock.runtime.observe.logs import set_up_logs
from penstock.runtime.observe.metrics import BUCKETS_S, OTHER, Metrics
from penstock.runtime.observe.traces import Tracer, traceparent
from penstock.runtime.report import Report, kind_of
from tests.runtime.scripted import ScriptedWire
from tests.runtime.stage import Recorder, eventually, looping

BROKEN = Failure(code="handler_error", type="ValueError", message="broken")


# Events -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "settlement", "kind"),
    [
        (Done(), Settled(SettledKind.SUCCEEDED), EventKind.SUCCEEDED),
        (Failed(BROKEN), Settled(SettledKind.RETRYING), EventKind.RETRIED),
        (Failed(BROKEN), Settled(SettledKind.PARKED), EventKind.FAILED),
        (Failed(BROKEN, Word.NEVER), Settled(SettledKind.PARKED), EventKind.REJECTED),
        (Snoozed(timedelta(1)), Settled(SettledKind.SNOOZED), EventKind.SNOOZED),
        (Continued(1), Settled(SettledKind.CONTINUED), EventKind.CONTINUED),
        (Interrupted(), Settled(SettledKind.RETURNED), EventKind.RETURNED),
        (Cancelled(), Settled(SettledKind.CANCELLED), EventKind.CANCELLED),
        (Lost(), Gone(), EventKind.LOST),
        (Done(), Gone(), EventKind.LOST),
        (Done(), Unknown(), EventKind.SUCCEEDED),
        (Done(), None, EventKind.SUCCEEDED),
        (Failed(BROKEN), None, EventKind.FAILED),
        (Failed(BROKEN, Word.NEVER), None, EventKind.REJECTED),
        (Interrupted(), None, EventKind.RETURNED),
    ],
)
def test_every_end_has_one_kind(outcome: Any, settlement: Any, kind: EventKind) -> None:
    assert kind_of(outcome, settlement) is kind


async def life_of(handler: Any, **more: Any) -> tuple[list[EventKind], Recorder]:
    told, wire = Recorder(), ScriptedWire("act", max_attempts=2, **more)
    async with looping(wire, handler, sink=told):
        work_id = await wire.enqueue({})
        await wire.over(work_id)
        await eventually(lambda: told.events and told.events[-1].kind in FINAL)
    return told.kinds(work_id), told


FINAL = {EventKind.SUCCEEDED, EventKind.FAILED, EventKind.REJECTED}


async def test_the_events_of_a_run_tell_its_story_in_order() -> None:
    async def act(ctx: Context) -> None:
        if ctx.delivery == 1:
            raise Snooze(0)
        if ctx.iteration == 0:
            raise Continue("b")
        if ctx.attempt == 1:
            raise OSError("flaky")

    kinds, told = await life_of(act)

    assert kinds == [
        EventKind.STARTED,
        EventKind.SNOOZED,
        EventKind.STARTED,
        EventKind.CONTINUED,
        EventKind.STARTED,
        EventKind.RETRIED,
        EventKind.STARTED,
        EventKind.SUCCEEDED,
    ]
    assert [e.attempt for e in told.events] == [1, 1, 1, 1, 1, 1, 2, 2]
    assert [e.delivery for e in told.events[::2]] == [1, 2, 3, 4]
    retried = told.the(EventKind.RETRIED)
    assert (retried.error_code, retried.error) == ("handler_error", "flaky")
    assert all(e.worker == "ann" and e.name == "act" and e.protocol == "natq" for e in told.events)
    assert len({e.id for e in told.events}) == len(told.events)
    ends = [e for e in told.events if e.kind is not EventKind.STARTED]
    assert all(e.run_ms is not None and e.run_ms >= 0 for e in ends)


async def test_a_rejection_is_told_with_its_code() -> None:
    async def act() -> None:
        raise Reject("too big", code="too_big")

    _, told = await life_of(act)

    assert told.the(EventKind.REJECTED).error_code == "too_big"


def test_a_dead_letter_is_told_after_the_failure_that_made_it() -> None:
    told = Recorder()
    invocation = Invocation(protocol="natq", task="act", work_id="r")

    Report(told).ended(
        invocation, Failed(BROKEN), Settled(SettledKind.PARKED, dead_lettered=True), 0.1
    )

    assert told.kinds() == [EventKind.FAILED, EventKind.DEAD_LETTERED]


def test_how_long_work_waited_is_told_at_its_start() -> None:
    told = Recorder()
    enqueued_at = now_utc() - timedelta(seconds=2)
    invocation = Invocation(protocol="natq", task="act", work_id="r", enqueued_at=enqueued_at)

    Report(told).started(invocation)

    wait_ms = told.the(EventKind.STARTED).wait_ms
    assert wait_ms is not None
    assert 2000 <= wait_ms < 60_000


def test_settling_without_an_answer_is_noted() -> None:
    told = Recorder()

    Report(told).ended(
        Invocation(protocol="natq", task="act", work_id="r"), Done(), Unknown("cut"), 0.1
    )

    assert told.the(EventKind.SUCCEEDED).note == "settling: cut"


# Metrics ----------------------------------------------------------------------------------


def test_metrics_count_runs_and_spread_their_times() -> None:
    metrics = Metrics()
    for seconds in (0.0005, 0.02, 0.02, 4000.0):
        metrics.ran("natq", "act", "succeeded", seconds)
    metrics.ran("natq", "act", "failed", 1.0)
    metrics.gauge("slots_free", "Free.", lambda: 7)

    text = metrics.render().decode()

    labels = 'outcome="succeeded",protocol="natq",task="act"'
    assert f"penstock_runs_total{{{labels}}} 4.0" in text
    assert 'penstock_runs_total{outcome="failed",protocol="natq",task="act"} 1.0' in text
    assert f'penstock_run_seconds_bucket{{le="0.001",{labels}}} 1.0' in text
    assert f'penstock_run_seconds_bucket{{le="0.05",{labels}}} 3.0' in text
    assert f'penstock_run_seconds_bucket{{le="3600.0",{labels}}} 3.0' in text
    assert f'penstock_run_seconds_bucket{{le="+Inf",{labels}}} 4.0' in text
    assert "penstock_slots_free 7.0" in text
    assert list(BUCKETS_S) == sorted(BUCKETS_S)


def test_names_from_the_wire_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.runtime.observe.metrics._MAX_SERIES", 10)
    metrics = Metrics()
    for n in range(1000):
        metrics.ran("ojs", f"unknown-{n}", "failed", 0.1)

    assert len(metrics.counts()) == 11
    assert metrics.counts()["ojs", OTHER, "failed"] == 990


def test_metrics_join_a_registry_of_ones_own() -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    registry, metrics = CollectorRegistry(), Metrics()
    registry.register(metrics)
    metrics.ran("ojs", "act", "succeeded", 0.1)

    assert b"penstock_runs_total" in generate_latest(registry)


# Traces -----------------------------------------------------------------------------------

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> tuple[InMemorySpanExporter, TracerProvider]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter, provider


async def test_a_run_is_a_span_beneath_the_one_that_enqueued_it(
    spans: tuple[InMemorySpanExporter, TracerProvider],
) -> None:
    exporter, provider = spans
    seen = []

    async def act() -> None:
        seen.append(traceparent())

    wire = ScriptedWire("act")
    async with looping(wire, act, tracer=Tracer("ann", provider)):
        work_id = await wire.enqueue({})
        await wire.over(work_id)
        await eventually(exporter.get_finished_spans)

    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind) == ("run act", SpanKind.CONSUMER)
    attributes = dict(span.attributes or {})
    assert attributes["messaging.message.id"] == work_id
    assert attributes["penstock.outcome"] == "done"
    assert attributes["penstock.attempt"] == 1
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" in seen[0]  # what the handler enqueues is its child


def test_the_trace_that_came_with_the_work_goes_on(
    spans: tuple[InMemorySpanExporter, TracerProvider],
) -> None:
    exporter, provider = spans
    invocation = Invocation(protocol="natq", task="act", work_id="r", trace=PARENT)

    with Tracer("ann", provider).span(invocation) as span:
        span.ended(Failed(BROKEN))

    (ended,) = exporter.get_finished_spans()
    assert ended.context is not None
    assert ended.parent is not None
    assert f"{ended.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert f"{ended.parent.span_id:016x}" == "b7ad6b7169203331"
    assert ended.status.status_code is StatusCode.ERROR
    assert ended.status.description == "broken"


def test_a_broken_traceparent_only_starts_a_trace_of_its_own(
    spans: tuple[InMemorySpanExporter, TracerProvider],
) -> None:
    exporter, provider = spans
    invocation = Invocation(protocol="natq", task="act", work_id="r", trace="nonsense")

    with Tracer("ann", provider).span(invocation) as span:
        span.ended(Done())

    (ended,) = exporter.get_finished_spans()
    assert ended.parent is None


def test_without_a_provider_there_is_no_tracer_and_no_traceparent() -> None:
    assert Tracer.installed("ann") is None
    assert traceparent() == ""


# Logs -------------------------------------------------------------------------------------


@pytest.fixture
def lines(request: pytest.FixtureRequest) -> Any:
    """Everything that Penstock logs, as text; put back as it was afterwards."""
    root = logging.getLogger("penstock")
    before = root.level, root.propagate
    stream = io.StringIO()
    handler = set_up_logs(getattr(request, "param", "json"), "DEBUG", stream)
    yield stream
    root.removeHandler(handler)
    root.setLevel(before[0])
    root.propagate = before[1]


async def test_every_line_about_a_run_carries_its_ids(lines: io.StringIO) -> None:
    async def act(ctx: Context) -> None:
        ctx.log.info("halfway", extra={"page": 3})
        raise OSError("flaky")

    wire = ScriptedWire("act", max_attempts=1)
    async with looping(wire, act):
        work_id = await wire.enqueue({})
        await wire.over(work_id)
        await eventually(lambda: "failed: flaky" in lines.getvalue())

    said = [json.loads(line) for line in lines.getvalue().splitlines()]
    about = [line for line in said if line["message"] in ("halfway", "failed: flaky")]
    assert len(about) == 2
    ids = {"workerId": "ann", "taskId": "act", "runId": work_id}
    assert all(line.items() >= ids.items() for line in about)
    assert about[0]["page"] == 3
    assert {"at", "level", "logger"} <= about[0].keys()


def test_what_json_cannot_say_is_logged_all_the_same(lines: io.StringIO) -> None:
    logging.getLogger("penstock.task").info("odd", extra={"what": object(), "n": float("nan")})
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("penstock.task").exception("with a trace")

    first, second = (json.loads(line) for line in lines.getvalue().splitlines())
    assert first["what"].startswith("<object object")
    assert "ValueError: broken" in second["error"]


@pytest.mark.parametrize("lines", ["human"], indirect=True)
def test_lines_for_people_name_the_task_and_the_run(lines: io.StringIO) -> None:
    extra = {"workerId": "w", "taskId": "act", "runId": "r-1"}
    logging.getLogger("penstock.task").warning("too slow", extra=extra)
    logging.getLogger("penstock.worker").info("the worker runs", extra={"workerId": "w"})

    first, second = lines.getvalue().splitlines()
    assert first.endswith("warning too slow  (act r-1)")
    assert second.endswith("info    the worker runs  (worker w)")
