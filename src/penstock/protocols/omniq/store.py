"""The hot calls: publish, reserve, heartbeat, and the ends a lease can have.

Each is one script, one transaction. The server's clock decides unless an override is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from penstock.broker.resp import Arg
from penstock.protocols.omniq.calls import Call, Scripts, Steps, anchor, whole
from penstock.protocols.omniq.errors import BadArgs, JobExists, OmniqError, refusal
from penstock.protocols.omniq.wire import (
    DEFAULT_BACKOFF_MS,
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_TIMEOUT_MS,
    PAUSED,
    Paused,
    PublishedId,
    ReservedJob,
    ReserveResult,
    cut_error,
    encode_payload,
    group_id,
    text,
    ulid,
)

__all__ = ["AckFailResult", "Draft", "Ended", "IfExists", "Options", "Settle", "Store", "Turn"]

IfExists: TypeAlias = Literal["keep", "error"]
AckFailResult: TypeAlias = tuple[Literal["RETRY"], int] | tuple[Literal["FAILED"], None]

MAX_RESERVE: Final = 1000
_SLICE_JOBS: Final = 500
_SLICE_BYTES: Final = 4 * 1024 * 1024
_LEASE_FIELDS: Final = 10
_ENDS: Final = frozenset(("OK", "RETRY", "FAILED"))


class Options(NamedTuple):
    """How a job is run. ``due_ms`` is an instant; ``group_limit`` counts if the group has none."""

    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    backoff_ms: int = DEFAULT_BACKOFF_MS
    due_ms: int = 0
    gid: str | None = None
    group_limit: int = 0


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A job for ``publish_many`` that differs from the others; ``None`` means as they."""

    payload: dict[str, Any] | list[Any]
    job_id: str | None = None
    max_attempts: int | None = None
    timeout_ms: int | None = None
    backoff_ms: int | None = None
    due_ms: int | None = None
    gid: str | None = None
    group_limit: int | None = None


class Settle(NamedTuple):
    """How one lease ends; make them with the verbs below."""

    verb: str
    job_id: str
    lease_token: str
    delay_ms: int = 0
    text: bytes = b""
    ttl_ms: int = 0

    @classmethod
    def succeed(
        cls, job_id: str, lease_token: str, *, result: bytes = b"", result_ttl_ms: int = 0
    ) -> Settle:
        """Done; ``result`` is kept beside the queue for ``result_ttl_ms``, not at all for 0."""
        return cls("succeed", job_id, lease_token, 0, result, result_ttl_ms)

    @classmethod
    def fail(cls, job_id: str, lease_token: str, *, error: str | None = None) -> Settle:
        """A failed attempt: again after the job's backoff, or failed for good at its last."""
        return cls("fail", job_id, lease_token, 0, cut_error(error))

    @classmethod
    def retry(
        cls, job_id: str, lease_token: str, *, delay_ms: int, error: str | None = None
    ) -> Settle:
        """As `fail`, with a delay of its own instead of the backoff."""
        return cls("retry", job_id, lease_token, delay_ms, cut_error(error))

    @classmethod
    def reject(cls, job_id: str, lease_token: str, *, error: str | None = None) -> Settle:
        """Failed for good, whatever attempts are left."""
        return cls("reject", job_id, lease_token, 0, cut_error(error))

    @classmethod
    def snooze(
        cls, job_id: str, lease_token: str, *, delay_ms: int, checkpoint: bytes = b""
    ) -> Settle:
        """Later, without using up the attempt; 0 is the back of the line at once."""
        return cls("snooze", job_id, lease_token, delay_ms, checkpoint)

    @classmethod
    def release(cls, job_id: str, lease_token: str) -> Settle:
        """Give the job back to the front of its line without using up the attempt."""
        return cls("release", job_id, lease_token)


class Ended(NamedTuple):
    """How a lease ended: ``OK``, ``RETRY`` or ``FAILED``, or the code of a refusal."""

    status: str
    due_ms: int | None = None

    @property
    def refused(self) -> bool:
        """Whether nothing was changed, because the lease was not ours any more."""
        return self.status not in _ENDS


class Turn(NamedTuple):
    """What one fused settle-and-reserve did."""

    ended: list[Ended]
    jobs: list[ReservedJob]
    paused: bool


class Store:
    """Builds the hot calls; pure, no connection of its own."""

    def __init__(self, scripts: Scripts) -> None:
        self.scripts = scripts

    def publish(
        self,
        queue: str,
        payload: dict[str, Any] | list[Any],
        options: Options,
        *,
        job_id: str | None,
        if_exists: IfExists,
        now: int,
    ) -> Call[PublishedId]:
        """One job. An id that is alive is kept as it is, and said so by the returned id."""
        name = job_id or ulid()
        args = (whole("now_ms_override", now), *_fields(name, encode_payload(payload), options))

        def read(reply: list[int]) -> PublishedId:
            if reply[0] and _strict(if_exists):
                raise JobExists(f"publish failed: a live job has the id {name!r}")
            return PublishedId(name, bool(reply[0]))

        _strict(if_exists)
        return Call(self.scripts["publish"], anchor(queue), args, read)

    def publish_many(
        self,
        queue: str,
        jobs: Iterable[dict[str, Any] | list[Any] | Draft],
        options: Options,
        *,
        if_exists: IfExists,
        now: int,
    ) -> Steps[list[PublishedId]]:
        """Many jobs in slices, each one transaction; the order of ``jobs`` is the order of work."""
        strict = _strict(if_exists)
        published: list[PublishedId] = []
        args: list[Arg] = [whole("now_ms_override", now)]
        names: list[str] = []
        size = 0
        for job in jobs:
            name, payload, own = _drafted(job, options)
            args += _fields(name, payload, own)
            names.append(name)
            size += len(payload)
            if len(names) >= _SLICE_JOBS or size >= _SLICE_BYTES:
                published += yield self._slice(queue, names, tuple(args))
                args, names, size = args[:1], [], 0
        if names:
            published += yield self._slice(queue, names, tuple(args))
        kept = [name for name in published if name.kept]
        if kept and strict:
            raise JobExists(f"{len(kept)} of {len(published)} ids were alive, first {kept[0]!r}")
        return published

    def reserve(self, queue: str, *, count: int, now: int) -> Call[list[ReservedJob] | Paused]:
        """Up to ``count`` leases."""
        args = (whole("now_ms_override", now), _amount(count))
        return Call(self.scripts["reserve"], anchor(queue), args, read_jobs)

    def reserve_one(self, queue: str, *, now: int) -> Call[ReserveResult]:
        """The contract's reserve."""
        args = (whole("now_ms_override", now), 1)
        return Call(self.scripts["reserve"], anchor(queue), args, _read_one)

    def heartbeat(
        self, queue: str, leases: Sequence[tuple[str, str]], *, now: int
    ) -> Call[list[int | OmniqError]]:
        """The new end of each lease (job id, token), or why it is lost."""
        args: list[Arg] = [whole("now_ms_override", now)]
        for job_id, token in leases:
            args += (job_id, token)

        def read(reply: list[Any]) -> list[int | OmniqError]:
            return [
                answer if isinstance(answer, int) else refusal("heartbeat", text(answer), job_id)
                for answer, (job_id, _) in zip(reply, leases, strict=True)
            ]

        return Call(self.scripts["heartbeat"], anchor(queue), tuple(args), read)

    def settle(self, queue: str, ends: Sequence[Settle], *, now: int) -> Call[list[Ended]]:
        """End leases; refusals are members of the answer."""
        args: list[Arg] = [whole("now_ms_override", now)]
        for end in ends:
            args += end
        return Call(self.scripts["settle"], anchor(queue), tuple(args), _read_ends)

    def turn(
        self,
        queue: str,
        ends: Sequence[Settle],
        *,
        count: int,
        holder: str,
        number: int,
        now: int,
    ) -> Call[Turn]:
        """End leases and take new ones in one transaction."""
        args: list[Arg] = [whole("now_ms_override", now), _amount(count), holder, number]
        for end in ends:
            args += end
        return Call(self.scripts["turn"], anchor(queue), tuple(args), _read_turn)

    def regain(
        self, queue: str, holder: str, number: int, *, now: int
    ) -> Call[list[ReservedJob] | Paused]:
        """The leases of a turn whose answer was lost."""
        args = (whole("now_ms_override", now), holder, number)
        return Call(self.scripts["regain"], anchor(queue), args, read_jobs)

    def ack_success(self, queue: str, job_id: str, token: str, *, now: int) -> Call[None]:
        """The contract's ack."""

        def read(reply: list[Any]) -> None:
            _end_or_raise("ack_success", job_id, reply)

        call = self.settle(queue, (Settle.succeed(job_id, token),), now=now)
        return Call(call.script, call.key, call.args, read)

    def ack_fail(
        self, queue: str, job_id: str, token: str, error: str | None, *, now: int
    ) -> Call[AckFailResult]:
        """The contract's negative ack."""

        def read(reply: list[Any]) -> AckFailResult:
            ended = _end_or_raise("ack_fail", job_id, reply)
            if ended.status == "RETRY" and ended.due_ms is not None:
                return "RETRY", ended.due_ms
            return "FAILED", None

        call = self.settle(queue, (Settle.fail(job_id, token, error=error),), now=now)
        return Call(call.script, call.key, call.args, read)

    def checkpoint(self, queue: str, job_id: str, token: str, notes: bytes) -> Call[None]:
        """Keep a worker's notes on the job while the lease holds; empty forgets them."""

        def read(reply: Any) -> None:
            if text(reply) != "OK":
                raise refusal("checkpoint", text(reply), job_id)

        return Call(self.scripts["checkpoint"], anchor(queue), (job_id, token, notes), read)

    def ended_by(self, queue: str, end: Settle) -> Call[Ended | None]:
        """How the job ended if it was by this very lease; ``None`` if by another, or unknown."""

        def read(reply: list[Any]) -> Ended | None:
            state, token, due = (text(field) if field else "" for field in reply)
            if token != end.lease_token:
                return None
            if end.verb in ("fail", "retry", "reject"):
                return Ended("FAILED") if state == "failed" else Ended("RETRY", int(due or 0))
            return Ended("OK")

        return Call(self.scripts["ended"], anchor(queue), (end.job_id,), read)

    def result(self, queue: str, job_id: str) -> Call[bytes | None]:
        """What a job left with its success, while it is kept."""
        return Call(self.scripts["result"], anchor(queue), (job_id,), _bytes)

    def _slice(self, queue: str, names: list[str], args: tuple[Arg, ...]) -> Call[Any]:
        def read(reply: list[int]) -> list[PublishedId]:
            kept = set(reply[1:])
            return [PublishedId(name, place in kept) for place, name in enumerate(names)]

        return Call(self.scripts["publish"], anchor(queue), args, read)


def read_jobs(reply: Any) -> list[ReservedJob] | Paused:
    """The leases in a reply of reserve."""
    if not isinstance(reply, list):
        return PAUSED
    return [
        ReservedJob(
            job_id=text(reply[at]),
            payload=text(reply[at + 1]),
            lock_until_ms=reply[at + 2],
            attempt=reply[at + 3],
            gid=text(reply[at + 4]),
            lease_token=text(reply[at + 5]),
            max_attempts=reply[at + 6],
            timeout_ms=reply[at + 7],
            checkpoint=_bytes(reply[at + 8]) or None,
            returned=reply[at + 9],
        )
        for at in range(0, len(reply), _LEASE_FIELDS)
    ]


def _read_one(reply: Any) -> ReserveResult:
    jobs = read_jobs(reply)
    if isinstance(jobs, Paused):
        return jobs
    return jobs[0] if jobs else None


def _read_ends(reply: list[Any]) -> list[Ended]:
    return [Ended(text(reply[at]), reply[at + 1] or None) for at in range(0, len(reply), 2)]


def _read_turn(reply: list[Any]) -> Turn:
    jobs = read_jobs(reply[1])
    if isinstance(jobs, Paused):
        return Turn(_read_ends(reply[0]), [], True)
    return Turn(_read_ends(reply[0]), jobs, False)


def _end_or_raise(call: str, job_id: str, reply: list[Any]) -> Ended:
    ended = _read_ends(reply)[0]
    if ended.refused:
        raise refusal(call, ended.status, job_id)
    return ended


def _fields(name: str, payload: bytes, options: Options) -> tuple[Arg, ...]:
    """The eight fields of one job in a call of the publish script."""
    attempts, timeout, backoff, due, gid, limit = options
    return (
        name,
        payload,
        group_id(gid),
        whole("max_attempts", attempts),
        whole("timeout_ms", timeout),
        whole("backoff_ms", backoff),
        whole("due_ms", due),
        whole("group_limit", limit),
    )


def _drafted(
    job: dict[str, Any] | list[Any] | Draft, options: Options
) -> tuple[str, bytes, Options]:
    if not isinstance(job, Draft):
        return ulid(), encode_payload(job), options
    own = {
        name: value
        for name in Options._fields
        if (value := getattr(job, name)) is not None  # what the draft leaves open is as given
    }
    return job.job_id or ulid(), encode_payload(job.payload), options._replace(**own)


def _strict(if_exists: IfExists) -> bool:
    if if_exists not in ("keep", "error"):
        raise BadArgs(f"if_exists {if_exists!r} is not known", remedy="use 'keep' or 'error'.")
    return if_exists == "error"


def _amount(count: int) -> int:
    if not 0 <= count <= MAX_RESERVE:
        raise BadArgs(f"{count} jobs at once cannot be reserved; the limit is {MAX_RESERVE}")
    return count


def _bytes(value: Any) -> bytes | None:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
