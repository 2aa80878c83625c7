"""Every transition of a job's life, and every refusal."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from msgspec import UNSET, Raw

from penstock.protocols.ojs import rules
from penstock.protocols.ojs.names import STATES, TERMINAL
from penstock.protocols.ojs.options import OjsOptions
from penstock.protocols.ojs.record import Record, decode_record, encode_record
from penstock.protocols.ojs.refusal import Refusal
from penstock.protocols.ojs.requests import ErrorGiven, Holding

from .making import (
    EXACT,
    NOW,
    OPTIONS,
    a_job,
    ack,
    acked,
    an_active,
    changed,
    dice,
    in_state,
    later,
    nack,
    refused,
)

Deed = Callable[[Record], Record | Refusal]

DEEDS: dict[str, tuple[Deed, set[str]]] = {
    "claim": (lambda r: rules.claim(r, NOW, dice(), OPTIONS), {"available"}),
    "ack": (ack, {"active"}),
    "nack": (nack, {"active"}),
    "beat": (lambda r: rules.heartbeat(r, Holding(), NOW, dice()), {"active"}),
    "cancel": (
        lambda r: rules.cancel(r, NOW, dice(), OPTIONS),
        set(STATES) - TERMINAL,
    ),
    "activate": (lambda r: rules.activate(r, NOW, dice()), {"pending"}),
    "redrive": (lambda r: rules.redrive(r, NOW, dice()), {"discarded", "cancelled"}),
    "reprioritise": (
        lambda r: rules.reprioritise(r, 5, NOW, dice()),
        {"scheduled", "available", "pending", "retryable"},
    ),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("deed", DEEDS)
def test_each_deed_is_allowed_in_its_states_and_refused_in_all_others(
    deed: str, state: str
) -> None:
    act, allowed = DEEDS[deed]
    record = in_state(state)
    assert record.state == state

    result = act(record)

    if state in allowed:
        assert isinstance(result, Record)
    else:
        refusal = refused(result)
        assert (refusal.code, refusal.status) == ("conflict", 409)
        assert refusal.details["current_state"] == state


@pytest.mark.parametrize("state", STATES)
def test_only_a_finished_job_may_be_deleted(state: str) -> None:
    assert (rules.removable(in_state(state)) is None) == (state in TERMINAL)


@pytest.mark.parametrize("state", STATES)
def test_a_record_in_any_state_is_read_back_as_it_was_written(state: str) -> None:
    record = in_state(state)
    assert decode_record(encode_record(record)) == record


def test_a_claim_counts_the_attempt_and_names_the_holder() -> None:
    record = changed(
        rules.claim(a_job(), NOW, dice(), OPTIONS, worker="w1", term=timedelta(seconds=5))
    )
    assert (record.job.attempt, record.state) == (1, "active")
    assert record.job.started_at == "2026-03-01T12:00:00.000Z"
    assert record.held is not None
    assert record.held.worker == "w1"
    assert record.held.until_ms == record.created_ms + 5000
    assert record.due_ms == record.held.until_ms


def test_a_claim_takes_the_term_of_the_job_before_that_of_the_server() -> None:
    own = changed(rules.claim(a_job(visibility_timeout_ms=700), NOW, dice(), OPTIONS))
    server = changed(rules.claim(a_job(), NOW, dice(), OPTIONS))
    assert own.held is not None and server.held is not None
    assert (own.held.term_ms, server.held.term_ms) == (700, 1_800_000)


def test_a_job_that_has_just_expired_is_not_handed_out() -> None:
    record = a_job(expires_at="+PT1S")
    refused(rules.claim(record, later(1), dice(), OPTIONS))


@pytest.mark.parametrize(
    "hold", [Holding(worker="w2"), Holding(attempt=2), Holding(fence="feed")], ids=str
)
def test_who_proves_another_hold_may_neither_ack_nor_nack_nor_beat(hold: Holding) -> None:
    record = an_active("w1")
    for result in (
        ack(record, worker=hold.worker, attempt=hold.attempt, fence=hold.fence),
        nack(record, hold=hold),
        rules.heartbeat(record, hold, NOW, dice()),
    ):
        assert refused(result).code == "conflict"


def test_who_says_nothing_of_its_hold_is_believed() -> None:
    assert acked(an_active("w1")).state == "completed"


def test_an_ack_keeps_the_result_and_drops_the_last_error() -> None:
    failed = changed(nack(an_active(retry=EXACT)))
    again = changed(rules.claim(_promoted(failed), later(1), dice(), OPTIONS))
    done = acked(again, {"rows": 3}, now=later(2))
    assert bytes(done.job.result) == b'{"rows":3}'  # type: ignore[arg-type]
    assert done.job.error is UNSET
    assert len(done.job.errors) == 1
    assert done.job.completed_at == "2026-03-01T12:00:02.000Z"
    assert done.held is None


def test_an_ack_sent_again_after_its_answer_was_lost_is_the_same_ack() -> None:
    done = acked(an_active(), request="r-1")
    assert ack(done, request="r-1") is done
    refused(ack(done, request="r-2"))


def test_a_result_that_is_too_large_leaves_the_job_active() -> None:
    small = OjsOptions(limits=OPTIONS.limits.__class__(max_result_bytes=4))
    record = an_active()
    from penstock.protocols.ojs.requests import AckRequest

    asked = AckRequest(job_id=record.id, result=Raw(b'"12345"'))
    assert refused(rules.acknowledge(record, asked, NOW, dice(), small)).status == 413


def test_a_result_ttl_of_zero_keeps_nothing_and_of_minus_one_keeps_for_ever() -> None:
    none = acked(an_active(result_ttl=0), 1)
    forever = acked(an_active(result_ttl=-1), 1)
    assert none.job.result is UNSET
    assert (forever.at.purge_ms, forever.due_ms) == (0, 0)


def test_a_nack_draws_the_delay_once_and_keeps_it() -> None:
    record = changed(nack(an_active(retry=EXACT)))
    assert record.state == "retryable"
    assert record.job.retry_delay_ms == 1000
    assert record.job.next_attempt_at == "2026-03-01T12:00:01.000Z"
    assert record.due_ms == record.created_ms + 1000
    again = changed(rules.claim(_promoted(record), later(1), dice(), OPTIONS))
    assert again.job.retry_delay_ms == 1000
    assert again.job.next_attempt_at == ""


def test_attempts_run_out_and_the_job_is_discarded() -> None:
    record = an_active(retry={"max_attempts": 1})
    gone = changed(nack(record))
    assert (gone.state, gone.dead_letter) == ("discarded", False)
    assert gone.job.completed_at and gone.job.discarded_at


def test_exhaustion_buries_where_the_policy_says_so() -> None:
    gone = changed(nack(an_active(retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})))
    assert gone.dead_letter


@pytest.mark.parametrize(
    ("code", "dead"), [("DISCARD", False), ("FAIL", False), ("DEAD_LETTER", True)]
)
def test_handler_codes_beat_the_policy(code: str, dead: bool) -> None:
    record = an_active(retry={"max_attempts": 9, "on_exhaustion": "dead_letter"})
    gone = changed(nack(record, error=ErrorGiven(code=code)))
    assert (gone.state, gone.dead_letter) == ("discarded", dead)


def test_a_requeue_costs_no_attempt_and_goes_to_the_back() -> None:
    record = an_active(retry={"max_attempts": 1})
    back = changed(nack(record, now=later(3), requeue=True))
    assert (back.state, back.job.attempt, back.counted) == ("available", 1, 0)
    assert back.job.started_at == ""
    assert back.job.errors == ()
    assert back.order > record.order
    again = changed(rules.claim(back, later(4), dice(), OPTIONS))
    assert (again.job.attempt, again.counted, again.exhausted) == (2, 1, True)


def test_a_requeue_with_a_delay_is_scheduled_and_keeps_its_checkpoint() -> None:
    back = changed(
        nack(an_active(), requeue=True, delay_ms=5000, checkpoint=Raw(b"[1]"), iteration=4)
    )
    assert (back.state, back.iteration, back.checkpoint_seq) == ("scheduled", 4, 1)
    assert back.due_ms == back.created_ms + 5000


def test_a_retry_after_beats_the_backoff_up_to_a_limit() -> None:
    short = changed(nack(an_active(), retry_after_ms=42))
    vast = changed(nack(an_active(), retry_after_ms=10**13))
    assert short.job.retry_delay_ms == 42
    assert vast.due_ms == vast.created_ms + 7 * 86_400_000


def test_errors_are_kept_oldest_first_and_only_the_newest_ten() -> None:
    record = an_active(retry={"max_attempts": 99})
    for n in range(12):
        failed = changed(nack(record, error=ErrorGiven(message=str(n))))
        record = changed(rules.claim(_promoted(failed), later(9999), dice(), OPTIONS))
    said = [bytes(entry) for entry in record.job.errors]
    assert len(said) == 10
    assert b'"message":"2"' in said[0] and b'"message":"11"' in said[-1]


def test_a_cancelled_job_keeps_its_attempt_and_has_no_completion() -> None:
    gone = changed(rules.cancel(an_active(), NOW, dice(), OPTIONS, reason="why not"))
    assert (gone.state, gone.job.attempt, gone.job.completed_at) == ("cancelled", 1, "")
    assert gone.job.cancelled_at and gone.job.started_at
    assert gone.tail[-1].detail == {"reason": "why not"}
    assert gone.tail[-1].came_from == "active"


def test_a_redriven_job_starts_over_and_keeps_its_errors() -> None:
    dead = changed(nack(an_active(retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})))
    back = changed(rules.redrive(dead, later(9), dice()))
    assert (back.state, back.job.attempt, back.dead_letter) == ("available", 0, False)
    assert back.job.error is UNSET and len(back.job.errors) == 1
    assert back.job.completed_at == back.job.discarded_at == ""
    assert changed(rules.claim(back, later(9), dice(), OPTIONS)).job.attempt == 1


def test_a_beat_that_gains_nothing_writes_nothing() -> None:
    record = an_active()
    once = changed(rules.heartbeat(record, Holding(), later(10), dice()))
    assert once is not record
    assert rules.heartbeat(once, Holding(), later(10.2), dice()) is once


def test_a_beat_may_ask_for_a_term_of_its_own() -> None:
    record = an_active(visibility_timeout_ms=1000)
    longer = changed(rules.heartbeat(record, Holding(), NOW, dice(), term=timedelta(seconds=9)))
    assert longer.held is not None
    assert longer.held.until_ms >= longer.created_ms + 9000


def test_a_new_priority_keeps_the_place_among_equals() -> None:
    record = a_job()
    moved = changed(rules.reprioritise(record, 50, later(5), dice()))
    assert (moved.job.priority, moved.order) == (50, record.order)


def test_every_transition_counts_and_draws_a_write_id_of_its_own() -> None:
    from random import Random

    chance = Random(1)
    record = a_job()
    active = changed(rules.claim(record, NOW, chance, OPTIONS))
    gone = changed(rules.cancel(active, NOW, chance, OPTIONS))
    assert [record.n, active.n, gone.n] == [1, 2, 3]
    assert len({record.write_id, active.write_id, gone.write_id}) == 3
    assert [s.kind for s in gone.tail] == ["enqueued", "started", "cancelled"]


def _promoted(record: Record) -> Record:
    from penstock.protocols.ojs.timing import when_due

    ripe = when_due(record, later(9999), dice(), OPTIONS)
    assert isinstance(ripe, Record) and ripe.state == "available", ripe
    return ripe
