"""What time alone does to a job."""

from __future__ import annotations

import pytest

from penstock.protocols.ojs.options import OjsOptions
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.requests import ErrorGiven
from penstock.protocols.ojs.timing import Later, Purge, when_due, worker_died

from .making import (
    OPTIONS,
    a_job,
    acked,
    an_active,
    changed,
    dice,
    in_state,
    later,
    nack,
    refused,
)


def ripe(record: Record, seconds: float, options: OjsOptions = OPTIONS) -> Record:
    found = when_due(record, later(seconds), dice(), options)
    assert isinstance(found, Record), found
    return found


def test_a_scheduled_job_is_promoted_when_its_time_comes_and_not_before() -> None:
    record = a_job(scheduled_at="+PT5S")
    assert when_due(record, later(4.9), dice(), OPTIONS) == Later(record.due_ms)
    ready = ripe(record, 5)
    assert (ready.state, ready.job.attempt) == ("available", 0)
    assert ready.job.enqueued_at == "2026-03-01T12:00:05.000Z"
    assert ready.order > record.order


def test_a_retryable_job_is_promoted_after_its_backoff() -> None:
    record = changed(nack(an_active(retry={"jitter": False})))
    assert ripe(record, 1).state == "available"


@pytest.mark.parametrize("options", [{}, {"scheduled_at": "+PT60S"}, {"pending": True}])
def test_a_waiting_job_expires(options: dict[str, object]) -> None:
    gone = ripe(a_job(expires_at="+PT2S", **options), 2)
    assert gone.state == "discarded"
    assert gone.job.discarded_at and not gone.job.completed_at
    assert not gone.dead_letter
    assert gone.tail[-1].kind == "expired"


def test_a_retryable_job_whose_time_has_passed_expires_instead_of_running() -> None:
    record = changed(nack(an_active(expires_at="+PT1S", retry={"jitter": False})))
    assert ripe(record, 1).state == "discarded"


def test_a_running_job_is_not_touched_by_expiry() -> None:
    record = an_active(expires_at="+PT1S")
    assert isinstance(when_due(record, later(2), dice(), OPTIONS), Later)


def test_a_lapsed_lease_makes_the_job_available_at_once() -> None:
    back = ripe(an_active(visibility_timeout_ms=1000), 1)
    assert (back.state, back.job.attempt, back.job.started_at) == ("available", 1, "")
    assert b'"type":"visibility_timeout"' in bytes(back.job.errors[-1])


def test_a_lapsed_lease_spends_the_last_attempt() -> None:
    gone = ripe(an_active(visibility_timeout_ms=1000, retry={"max_attempts": 1}), 1)
    assert (gone.state, gone.dead_letter) == ("discarded", False)


def test_a_job_that_keeps_killing_its_workers_is_parked() -> None:
    options = OjsOptions(max_deaths=1)
    gone = ripe(an_active(visibility_timeout_ms=1, retry={"max_attempts": 99}), 1, options)
    assert (gone.state, gone.dead_letter, gone.deaths) == ("discarded", True, 1)


def test_an_execution_that_takes_too_long_counts_as_a_failure() -> None:
    record = ripe(an_active(timeout_ms=500), 0.5)
    assert record.state == "retryable"
    assert b'"timeout_kind":"execution"' in bytes(record.job.error)  # type: ignore[arg-type]


def test_the_total_timeout_ends_a_job_in_any_state() -> None:
    for record in (a_job(total_timeout=2), an_active(total_timeout=2)):
        gone = ripe(record, 2)
        assert gone.state == "discarded"
        assert b'"type":"total_timeout"' in bytes(gone.job.error)  # type: ignore[arg-type]


def test_a_retry_that_cannot_finish_in_time_is_not_scheduled() -> None:
    record = an_active(total_timeout=1, retry={"initial_interval": "PT10S", "jitter": False})
    assert changed(nack(record)).state == "discarded"


def test_a_job_not_started_within_its_ttl_is_discarded() -> None:
    gone = ripe(a_job(enqueue_ttl=3), 3)
    assert b"enqueue_ttl_expired" in bytes(gone.job.error)  # type: ignore[arg-type]


def test_a_result_is_pruned_before_its_record_is_purged() -> None:
    done = acked(an_active(result_ttl=10), {"a": 1})
    pruned = ripe(done, 10)
    assert bytes(done.job.result) and pruned.job.result != done.job.result  # type: ignore[arg-type]
    assert pruned.state == "completed" and pruned.n == done.n
    assert when_due(pruned, later(8 * 86400), dice(), OPTIONS) == Purge(done.id)


def test_a_record_its_workflow_still_needs_outlives_its_retention() -> None:
    done = acked(an_active())
    found = when_due(done, later(8 * 86400), dice(), OPTIONS, exempt=True)
    assert isinstance(found, Later) and found.due_ms > done.due_ms


def test_a_dead_letter_is_kept_longer_than_a_discard() -> None:
    plain = changed(nack(an_active(), error=ErrorGiven(retryable=False)))
    dead = changed(nack(an_active(), error=ErrorGiven(code="DEAD_LETTER")))
    assert dead.due_ms > plain.due_ms


def test_a_dead_workers_job_is_taken_back_and_nobody_elses() -> None:
    record = an_active("w1")
    back = changed(worker_died(record, "w1", later(9), dice(), OPTIONS))
    assert back.state == "available"
    assert b'"type":"worker_death"' in bytes(back.job.errors[-1])
    refused(worker_died(record, "w2", later(9), dice(), OPTIONS))
    refused(worker_died(in_state("completed"), "w1", later(9), dice(), OPTIONS))
