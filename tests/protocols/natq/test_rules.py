"""natq's decisions: the seed's list of behaviours, one story each, in a microsecond."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec import UNSET

from penstock.core.errors import BadInput, BadResult
from penstock.core.outcome import (
    Cancelled,
    Continued,
    Done,
    Interrupted,
    Lost,
    Outcome,
    Reject,
    Retry,
    Snoozed,
    outcome_of_error,
)
from penstock.core.policy import Backoff, RetryPolicy
from penstock.protocols.natq import rules
from penstock.protocols.natq.rules import (
    Abandon,
    Again,
    AlreadyDone,
    Finish,
    GiveBack,
    Postpone,
    Run,
    SomeoneElses,
    on_delivery,
)
from penstock.protocols.natq.schemas import UnfitResult
from penstock.protocols.natq.wire import Output

FOREVER = RetryPolicy(backoff=rules.BACKOFF)


def settled(
    outcome: Outcome, *, attempt: int = 1, policy: RetryPolicy = FOREVER
) -> rules.Settlement:
    return rules.settlement(outcome, task_id="t", run_id="r", attempt=attempt, policy=policy)


def replied(outcome: Outcome) -> Output:
    return rules.reply_to(outcome, task_id="t", run_id="r")


# Async ------------------------------------------------------------------------------------


def test_a_returned_value_is_written_with_200_and_acked() -> None:
    assert settled(Done({"x": 1})) == Finish(Output("r", "t", 200, {"x": 1}), ack=True)


def test_nothing_returned_leaves_data_out() -> None:
    decision = settled(Done(None))

    assert isinstance(decision, Finish)
    assert decision.output.data is UNSET


def test_falsy_data_is_data() -> None:
    for value in (0, False, "", [], {}):
        decision = settled(Done(value))
        assert isinstance(decision, Finish)
        assert decision.output.data == value


@pytest.mark.parametrize(("delivery", "seconds"), [
    (1, 2), (2, 4), (3, 8), (4, 16), (5, 32), (6, 60), (10, 60), (5000, 60),
])  # fmt: skip
def test_an_exception_comes_back_after_two_to_the_n_seconds(delivery: int, seconds: int) -> None:
    decision = settled(outcome_of_error(RuntimeError("boom")), attempt=delivery)

    assert decision == Again(timedelta(seconds=seconds))


def test_a_reject_is_written_and_terminated_as_400() -> None:
    decision = settled(outcome_of_error(Reject("bad address")))

    assert decision == Finish(Output("r", "t", 400, UNSET, "bad address"), ack=False)


def test_a_reject_keeps_its_own_status_and_data() -> None:
    decision = settled(outcome_of_error(Reject("gone", status=410, data={"id": 7})))

    assert decision == Finish(Output("r", "t", 410, {"id": 7}, "gone"), ack=False)


def test_a_reject_with_a_status_that_means_retry_is_a_400() -> None:
    decision = settled(outcome_of_error(Reject("no", status=503)))

    assert isinstance(decision, Finish)
    assert decision.output.status == 400


def test_input_that_does_not_fit_is_a_400_that_names_the_path() -> None:
    decision = settled(outcome_of_error(BadInput("expected int, got str", path="$.width")))

    assert isinstance(decision, Finish)
    assert decision.output.error == "expected int, got str at $.width"
    assert not decision.ack


def test_a_result_that_json_cannot_say_ends_the_job_as_500_because_its_work_is_done() -> None:
    decision = settled(outcome_of_error(BadResult("the result is not JSON: a object is not JSON")))

    error = "the result is not JSON: a object is not JSON"
    assert decision == Finish(Output("r", "t", 500, UNSET, error), ack=False)


def test_a_request_whose_result_json_cannot_say_gets_the_seed_s_words_and_no_details() -> None:
    output = replied(outcome_of_error(BadResult("the result is not JSON: a object is not JSON")))

    assert output == Output("r", "t", 500, UNSET, "Internal server error")


def test_a_request_is_told_where_a_result_is_not_as_announced() -> None:
    output = replied(outcome_of_error(UnfitResult("not a number at $.n")))

    assert (output.status, output.error) == (500, "not a number at $.n")


def test_a_retry_with_a_delay_gets_that_delay() -> None:
    assert settled(outcome_of_error(Retry(after=7))) == Again(timedelta(seconds=7))


def test_the_last_attempt_is_written_terminated_and_kept_as_a_dead_letter() -> None:
    policy = RetryPolicy(max_attempts=3)

    assert settled(outcome_of_error(RuntimeError("x")), attempt=2, policy=policy) == Again(
        timedelta(seconds=4)
    )
    last = settled(outcome_of_error(RuntimeError("x")), attempt=3, policy=policy)
    assert last == Finish(
        Output("r", "t", 500, UNSET, "Unhandled exception: x"), ack=False, dead=True
    )


def test_a_retry_with_a_delay_respects_the_limit_too() -> None:
    policy = RetryPolicy(max_attempts=1)
    decision = settled(outcome_of_error(Retry(after=1)), policy=policy)

    assert isinstance(decision, Finish)
    assert decision.dead


def test_a_task_s_own_backoff_replaces_the_protocol_s() -> None:
    policy = RetryPolicy(backoff=Backoff(base=timedelta(milliseconds=10)))

    assert settled(outcome_of_error(RuntimeError()), policy=policy) == Again(
        timedelta(milliseconds=10)
    )


def test_error_texts_are_cut() -> None:
    decision = settled(outcome_of_error(Reject("x" * 10_000)))

    assert isinstance(decision, Finish)
    assert isinstance(decision.output.error, str)
    assert len(decision.output.error) <= 4096


@pytest.mark.parametrize(("status", "decision"), [
    (100, "ack"), (200, "ack"), (204, "ack"), (299, "ack"),
    (300, "term"), (404, "term"), (499, "term"),
    (500, "again"), (503, "again"), (599, "again"),
])  # fmt: skip
def test_an_upstream_handler_s_status_decides(status: int, decision: str) -> None:
    match settled(Done(Output("r", "t", status, {"x": 1}, "why"))):
        case Finish(output=output, ack=ack, dead=False):
            assert output == Output("r", "t", status, {"x": 1}, "why")
            assert decision == ("ack" if ack else "term")
        case Again(delay=delay):
            assert decision == "again"
            assert delay == timedelta(seconds=2)
        case other:
            pytest.fail(f"{other} for {status}")


def test_a_snooze_postpones_and_keeps_the_checkpoint() -> None:
    outcome = Snoozed(timedelta(seconds=9), {"page": 2})

    assert settled(outcome) == Postpone(timedelta(seconds=9), {"page": 2}, iterates=False)


def test_a_continue_comes_back_at_once_as_the_next_iteration() -> None:
    assert settled(Continued([1])) == Postpone(timedelta(0), [1], iterates=True)


def test_an_interruption_gives_the_work_back() -> None:
    assert settled(Interrupted()) == GiveBack()


@pytest.mark.parametrize("outcome", [Lost("taken"), Cancelled("taken")])
def test_what_another_may_have_written_is_not_touched(outcome: Outcome) -> None:
    assert settled(outcome) == Abandon("taken")


# Sync -------------------------------------------------------------------------------------


def test_a_reply_is_the_value_with_200() -> None:
    assert replied(Done([1])) == Output("r", "t", 200, [1])


def test_a_handler_s_own_status_is_passed_through() -> None:
    assert replied(Done({"x": 1}, status=201)).status == 201


def test_an_exception_is_answered_with_500() -> None:
    assert replied(outcome_of_error(ValueError("boom"))) == Output(
        "r", "t", 500, UNSET, "Unhandled exception: boom"
    )


def test_a_retry_cannot_be_promised_so_it_is_a_500() -> None:
    assert replied(outcome_of_error(Retry("not yet"))).status == 500
    assert replied(outcome_of_error(Retry("not yet", status=503))).status == 503


def test_interruption_snooze_and_continue_are_unavailable() -> None:
    for outcome in (Interrupted(), Snoozed(timedelta(1)), Continued(1)):
        assert replied(outcome).status == 503


# Deliveries -------------------------------------------------------------------------------


def found(record: Output | None, **facts: object) -> object:
    return on_delivery(record, 11, **{"delivery": 2, "seq": 5, **facts})  # type: ignore[arg-type]


def test_without_a_record_it_runs_for_the_first_time() -> None:
    assert on_delivery(None, None, delivery=1, seq=5) == Run(1, None)
    assert on_delivery(None, 9, delivery=3, seq=5) == Run(1, 9)


def test_its_own_record_says_how_often_it_ran() -> None:
    assert found(Output("r", "t", 100, seq=5)) == Run(2, 11)
    assert found(Output("r", "t", 100, seq=5, attempt=4)) == Run(5, 11)


def test_an_attempt_that_was_given_back_does_not_count() -> None:
    assert found(Output("r", "t", 100, seq=5, attempt=0), delivery=7) == Run(1, 11)


def test_a_record_of_another_sdk_counts_deliveries() -> None:
    assert found(Output("r", "t", 100), delivery=3) == Run(3, 11)


def test_a_final_record_is_never_run_again() -> None:
    done = Output("r", "t", 200, {"x": 1})

    assert found(done) == AlreadyDone(done)
    assert found(done, delivery=1) == AlreadyDone(done)


def test_a_dropped_result_is_not_run_again() -> None:
    assert found(None, erased_after=True) == AlreadyDone(None)


def test_a_second_job_under_a_live_run_id_is_a_duplicate() -> None:
    assert found(Output("r", "t", 100, seq=4), delivery=1) == SomeoneElses()
    assert found(Output("r", "t", 100), delivery=1) == SomeoneElses()


def test_a_record_whose_job_is_gone_does_not_block_its_run_id() -> None:
    orphan = Output("r", "t", 100, seq=4, attempt=3)

    assert found(orphan, delivery=1, owner_alive=False) == Run(1, 11)


def test_duplicates_run_where_that_is_asked_for() -> None:
    done = Output("r", "t", 200)

    assert found(done, delivery=1, rerun_duplicates=True) == Run(1, 11)
    assert found(done, delivery=2, rerun_duplicates=True) == AlreadyDone(done)
