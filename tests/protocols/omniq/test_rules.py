"""What each outcome means for a lease, one row of the table each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from penstock.core.delivery import Gone, Settled, SettledKind
from penstock.core.invocation import Checkpoint
from penstock.core.outcome import (
    After,
    Cancelled,
    Continued,
    Done,
    Failed,
    Failure,
    Interrupted,
    Lost,
    Outcome,
    Snoozed,
    Word,
)
from penstock.core.policy import RetryPolicy
from penstock.protocols.omniq.rules import (
    decode_checkpoint,
    encode_checkpoint,
    settled,
    settlement,
)
from penstock.protocols.omniq.store import Ended, Settle
from penstock.protocols.omniq.wire import ReservedJob

JOB = ReservedJob(
    job_id="j",
    payload="{}",
    lock_until_ms=1,
    attempt=1,
    gid="",
    lease_token="t",
    max_attempts=3,
    timeout_ms=1000,
)
BROKEN = Failure("handler_error", "ValueError", "no", lineage=("ValueError", "Exception"))
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("outcome", "end"),
    [
        (Done({"a": 1}), Settle.succeed("j", "t")),
        (Failed(BROKEN), Settle.fail("j", "t", error="ValueError: no")),
        (
            Failed(BROKEN, After(SECOND)),
            Settle.retry("j", "t", delay_ms=1000, error="ValueError: no"),
        ),
        (Failed(BROKEN, Word.NEVER), Settle.reject("j", "t", error="ValueError: no")),
        (Snoozed(SECOND), Settle.snooze("j", "t", delay_ms=1000)),
        (
            Continued("b"),
            Settle.snooze("j", "t", delay_ms=0, checkpoint=b'{"value":"b","iteration":1}'),
        ),
        (Interrupted(), Settle.release("j", "t")),
        (Cancelled(), None),
        (Lost(), None),
    ],
)
def test_every_outcome_has_its_end(outcome: Outcome, end: Settle | None) -> None:
    assert settlement(outcome, JOB) == end


def test_a_result_is_kept_only_where_asked_for() -> None:
    end = settlement(Done({"a": 1}), JOB, result_ttl=SECOND)

    assert end == Settle.succeed("j", "t", result=b'{"a":1}', result_ttl_ms=1000)


def test_an_error_that_the_task_never_retries_ends_the_job_at_once() -> None:
    policy = RetryPolicy(never=frozenset({"ValueError"}))

    end = settlement(Failed(BROKEN), JOB, policy=policy)

    assert end == Settle.reject("j", "t", error="ValueError: no")


def test_how_often_is_said_by_the_job_not_by_the_task() -> None:
    policy = RetryPolicy(max_attempts=1)

    assert settlement(Failed(BROKEN), JOB, policy=policy) == Settle.fail(
        "j", "t", error="ValueError: no"
    )


def test_iterations_count_on_and_a_snooze_keeps_their_number() -> None:
    kept = Checkpoint("a", 4)

    again = decode_checkpoint(encode_checkpoint("b", kept, iterates=True))
    same = decode_checkpoint(encode_checkpoint("c", kept, iterates=False))

    assert (again, same) == (Checkpoint("b", 5), Checkpoint("c", 4))
    assert encode_checkpoint(None, kept, iterates=False) == b""  # what is there stays


@pytest.mark.parametrize("notes", [None, b"", b"not ours", b"[]"])
def test_notes_that_are_not_ours_are_no_checkpoint(notes: bytes | None) -> None:
    assert decode_checkpoint(notes) is None


@pytest.mark.parametrize(
    ("outcome", "ended", "kind"),
    [
        (Done(), Ended("OK"), SettledKind.SUCCEEDED),
        (Failed(BROKEN), Ended("RETRY", 5), SettledKind.RETRYING),
        (Failed(BROKEN), Ended("FAILED"), SettledKind.PARKED),
        (Snoozed(SECOND), Ended("OK", 5), SettledKind.SNOOZED),
        (Continued("b"), Ended("OK", 5), SettledKind.CONTINUED),
        (Interrupted(), Ended("OK"), SettledKind.RETURNED),
    ],
)
def test_the_answer_of_the_store_says_what_became_of_it(
    outcome: Outcome, ended: Ended, kind: SettledKind
) -> None:
    answer = settled(outcome, ended, JOB)

    assert isinstance(answer, Settled)
    assert answer.kind is kind
    due_at = datetime.fromtimestamp(0.005, UTC)
    assert answer.next_at == (due_at if ended.due_ms else None)


@pytest.mark.parametrize("code", ["TOKEN_MISMATCH", "NOT_ACTIVE"])
def test_a_refusal_means_that_the_lease_is_gone(code: str) -> None:
    answer = settled(Done(), Ended(code), JOB)

    assert isinstance(answer, Gone)
    assert code in answer.reason
