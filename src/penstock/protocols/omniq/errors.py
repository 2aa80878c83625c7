"""What can be wrong with a call on an OmniQ queue, each with the code of the contract.

The codes are part of the wire: every SDK reports the same ones. The message contains the
code, as the other SDKs' messages do, and all are ``RuntimeError`` like theirs.
"""

from __future__ import annotations

from penstock.core.errors import PenstockError

__all__ = [
    "AlreadyInit",
    "BadArgs",
    "BadExpected",
    "BadLane",
    "BadPayload",
    "BatchTooLarge",
    "ChildRequired",
    "JobActive",
    "JobExists",
    "LaneMismatch",
    "NoJob",
    "NotActive",
    "NotFailed",
    "NotInLane",
    "OmniqError",
    "TokenMismatch",
    "TokenRequired",
    "refusal",
]


class OmniqError(PenstockError, RuntimeError):
    """A call was refused; nothing was changed."""

    code = "OMNIQ"


class TokenRequired(OmniqError):
    """A lease token was not given."""

    code = "TOKEN_REQUIRED"
    remedy = "pass the lease_token that reserve returned with the job."


class TokenMismatch(OmniqError):
    """The job is not leased under this token: it ended, was reaped, or belongs to another now."""

    code = "TOKEN_MISMATCH"
    remedy = "stop working on the job; heartbeat more often than its timeout_ms."


class NotActive(OmniqError):
    """The job was taken out of the active lane from outside."""

    code = "NOT_ACTIVE"
    remedy = "stop working on the job."


class NoJob(OmniqError):
    """There is no job with this id."""

    code = "NO_JOB"
    remedy = "check the id and the queue; completed jobs are kept for the last hundred."


class NotFailed(OmniqError):
    """Only failed jobs can be retried."""

    code = "NOT_FAILED"


class JobActive(OmniqError):
    """A worker holds the job, so it cannot be removed."""

    code = "ACTIVE"
    remedy = "wait for the worker, or for its lease to lapse."


class LaneMismatch(OmniqError):
    """The job is not in that kind of lane."""

    code = "LANE_MISMATCH"
    remedy = (
        "look at its state with monitor.get_job; lanes are wait, gwait, delayed, failed, completed."
    )


class NotInLane(OmniqError):
    """The job's state fits the lane, and still it does not stand there."""

    code = "NOT_IN_LANE"
    remedy = "a waiting job with a gid stands in lane gwait, not in wait."


class BadLane(OmniqError, ValueError):
    """No such lane."""

    code = "BAD_LANE"
    remedy = "lanes are wait, gwait, delayed, failed and completed."


class BatchTooLarge(OmniqError, ValueError):
    """More ids than one call takes."""

    code = "BATCH_TOO_LARGE"
    remedy = "send at most 100 ids in one call."


class BadArgs(OmniqError, ValueError):
    """An argument cannot be used."""

    code = "BAD_ARGS"


class BadPayload(OmniqError, TypeError):
    """A payload is a dict or a list of what JSON can say, nothing else."""

    code = "BAD_PAYLOAD"
    remedy = "pass a dict or a list; wrap a single value, as in {'value': …}."


class JobExists(OmniqError):
    """A live job has this id already (asked for with ``if_exists="error"``)."""

    code = "EXISTS"
    remedy = "leave if_exists at 'keep' where publishing twice is meant to do nothing."


class ChildRequired(OmniqError, ValueError):
    """A child id was not given."""

    code = "CHILD_REQUIRED"


class BadExpected(OmniqError, ValueError):
    """A fan-out needs at least one child."""

    code = "BAD_EXPECTED"


class AlreadyInit(OmniqError):
    """The fan-out with this key is under way already."""

    code = "ALREADY_INIT"
    remedy = "use a key of its own for each fan-out."


_BY_CODE: dict[str, type[OmniqError]] = {
    kind.code: kind
    for kind in (
        TokenRequired,
        TokenMismatch,
        NotActive,
        NoJob,
        NotFailed,
        JobActive,
        LaneMismatch,
        NotInLane,
        BadLane,
        BatchTooLarge,
        ChildRequired,
        BadExpected,
        AlreadyInit,
    )
}


def refusal(call: str, code: str, job_id: str = "") -> OmniqError:
    """The typed error for a code that a script answered to ``call``."""
    about = f" for job {job_id!r}" if job_id else ""
    return _BY_CODE.get(code, OmniqError)(f"{call} failed{about}: {code}", code=code)
