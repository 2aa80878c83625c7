"""What a look at a queue shows: true lengths, groups, jobs; and the counters of SDK 4.x.

`counts` reads the lanes themselves and is always right. `stats` and the paged lanes of
``compat="v4"`` read what SDK 4.x reads, and are as right as every client on the queue keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from penstock.protocols.omniq.calls import Call, Scripts, anchor
from penstock.protocols.omniq.errors import BadLane
from penstock.protocols.omniq.wire import queue_base, text

__all__ = [
    "GROUPS_AT_ONCE",
    "QUEUE_KEYS",
    "Counts",
    "GroupStatus",
    "JobInfo",
    "LanePage",
    "Overview",
    "QueueStats",
    "State",
    "Views",
    "group_in",
    "group_pattern",
    "queue_of",
]

State: TypeAlias = Literal["wait", "active", "delayed", "failed", "completed"]

_STATES: Final = ("wait", "active", "delayed", "failed", "completed")
_MAX_GROUPS: Final = 2000
_MAX_SAMPLE: Final = 500
GROUPS_AT_ONCE: Final = 500
_MAX_PAGE: Final = 25
# Matches one key of every queue and leaves out jobs, groups, indexes and keys of ours.
QUEUE_KEYS: Final = "*}:[acdflpsw]*"
_SUFFIXES: Final = frozenset(
    ("active", "completed", "delayed", "failed", "lane:rr", "lease:seq", "paused", "stats", "wait")
)
_NUMBERS: Final = (
    "attempt",
    "max_attempts",
    "timeout_ms",
    "backoff_ms",
    "created_ms",
    "updated_ms",
    "due_ms",
    "lock_until_ms",
    "last_error_ms",
    "queued_ms",
    "first_started_ms",
    "last_started_ms",
    "completed_ms",
    "failed_ms",
)


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """True lengths. ``wait`` is the ungrouped lane; jobs of groups are counted per group."""

    paused: bool
    wait: int
    active: int
    delayed: int
    completed: int
    failed: int
    groups_ready: int


class GroupStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How one group stands."""

    gid: str
    inflight: int
    limit: int
    ready: bool
    waiting_count: int


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """The counters that SDK 4.x keeps; zero where nobody kept them."""

    queue: str
    paused: bool
    waiting: int = 0
    group_waiting: int = 0
    waiting_total: int = 0
    active: int = 0
    delayed: int = 0
    failed: int = 0
    completed_kept: int = 0
    groups_ready: int = 0
    last_activity_ms: int = 0
    last_enqueue_ms: int = 0
    last_reserve_ms: int = 0
    last_finish_ms: int = 0


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is stored; an instant that never came is ``None``."""

    job_id: str
    state: str
    payload: str
    gid: str = ""
    lease_token: str = ""
    last_error: str = ""
    attempt: int | None = None
    max_attempts: int | None = None
    timeout_ms: int | None = None
    backoff_ms: int | None = None
    created_ms: int | None = None
    updated_ms: int | None = None
    due_ms: int | None = None
    lock_until_ms: int | None = None
    last_error_ms: int | None = None
    queued_ms: int | None = None
    first_started_ms: int | None = None
    last_started_ms: int | None = None
    completed_ms: int | None = None
    failed_ms: int | None = None


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """One page about a queue: its counters and the first jobs of each lane."""

    stats: QueueStats
    counts: Counts
    lanes: dict[str, list[JobInfo]]


class LanePage(msgspec.Struct, frozen=True):
    """Part of a lane as it really is; ``more``: it may go on (ids without a job are left out)."""

    jobs: list[JobInfo]
    more: bool


class Views:
    """Builds the calls that look; pure, no connection of its own."""

    def __init__(self, scripts: Scripts) -> None:
        self.scripts = scripts

    def counts(self, queue: str) -> Call[Counts]:
        def read(reply: list[int]) -> Counts:
            paused, wait, active, delayed, completed, failed, groups = reply
            return Counts(
                paused=bool(paused),
                wait=wait,
                active=active,
                delayed=delayed,
                completed=completed,
                failed=failed,
                groups_ready=groups,
            )

        return Call(self.scripts["counts"], anchor(queue), (), read)

    def groups_ready(self, queue: str, offset: int, limit: int) -> Call[list[tuple[str, int]]]:
        """The gids that may run now, next first, with the instant each became ready."""

        def read(reply: list[Any]) -> list[tuple[str, int]]:
            return [(text(reply[at]), int(float(reply[at + 1]))) for at in range(0, len(reply), 2)]

        args = ("ready", max(offset, 0), _bounded(limit, _MAX_GROUPS))
        return Call(self.scripts["groups"], anchor(queue), args, read)

    def group_status(self, queue: str, gids: Sequence[str]) -> Call[list[GroupStatus]]:
        names = list(gids)[:_MAX_GROUPS]

        def read(reply: list[int]) -> list[GroupStatus]:
            return [
                GroupStatus(
                    gid=gid,
                    inflight=reply[at],
                    limit=reply[at + 1],
                    ready=bool(reply[at + 2]),
                    waiting_count=reply[at + 3],
                )
                for at, gid in zip(range(0, len(reply), 4), names, strict=True)
            ]

        return Call(self.scripts["groups"], anchor(queue), ("status", *names), read)

    def sample(self, queue: str, lane: str, limit: int) -> Call[list[JobInfo]]:
        """The first jobs of a lane as it really is."""
        args = (lane, 0, _bounded(limit, _MAX_SAMPLE), 0)
        return Call(self.scripts["jobs"], anchor(queue), args, _read_jobs)

    def page(self, queue: str, lane: str, offset: int, limit: int) -> Call[LanePage]:
        """Up to 500 jobs of a lane, a group's line (``g:<gid>:wait``) included, from ``offset``."""
        most = _bounded(limit, _MAX_SAMPLE)

        def read(reply: list[Any]) -> LanePage:
            seen, jobs = reply
            return LanePage(_read_jobs(jobs), seen == most)

        args = ("page", lane, max(offset, 0), most, 0)
        return Call(self.scripts["jobs"], anchor(queue), args, read)

    def lane_page(
        self, queue: str, lane: State, *, offset: int, limit: int, reverse: bool, gid: str
    ) -> Call[list[JobInfo]]:
        """A page of a lane: the index under ``v4``, the lane itself under ``v1`` or for a group."""
        if lane not in _STATES:
            raise BadLane(f"lane_page failed: BAD_LANE {lane!r}")
        name = f"idx:{lane}" if self.scripts.compat == "v4" else lane
        if gid:
            name = f"g:{gid}:wait"
        args = (name, max(offset, 0), _bounded(limit, _MAX_PAGE), int(reverse))
        return Call(self.scripts["jobs"], anchor(queue), args, _read_jobs)

    def find_jobs(self, queue: str, job_ids: Sequence[str]) -> Call[list[JobInfo]]:
        """Those of the jobs that exist."""
        args = ("ids", *list(job_ids)[:_MAX_SAMPLE])
        return Call(self.scripts["jobs"], anchor(queue), args, _read_jobs)

    def stats(self, queue: str) -> Call[QueueStats]:
        def read(reply: list[Any]) -> QueueStats:
            fields = _pairs(reply[1])
            known = {
                name: int(fields[name] or 0)
                for name in QueueStats.__struct_fields__
                if name in fields
            }
            return QueueStats(queue=queue, paused=bool(reply[0]), **known)

        return Call(self.scripts["stats"], anchor(queue), (), read)


def group_pattern(queue: str) -> str:
    """What the keys of a queue's groups look like, for a scan."""
    base = queue_base(queue)
    for special in "\\*?[]":
        base = base.replace(special, f"\\{special}")
    return f"{base}:g:*"


def group_in(queue: str, key: bytes) -> str:
    """The gid in the name of a group's key."""
    return text(key).removeprefix(f"{queue_base(queue)}:g:").rpartition(":")[0]


def queue_of(keys: Iterable[bytes]) -> set[str]:
    """The queues that these keys belong to, without braces."""
    names = set()
    for key in keys:
        base, brace, suffix = text(key).partition("}:")
        if brace and base.startswith("{") and suffix in _SUFFIXES and base[1:4] != "cc:":
            names.add(base[1:])
    return names


def _read_jobs(reply: list[Any]) -> list[JobInfo]:
    return [_job(text(job_id), _pairs(fields)) for job_id, fields in reply]


def _job(job_id: str, fields: dict[str, str]) -> JobInfo:
    numbers = {name: int(fields[name]) if fields.get(name) else None for name in _NUMBERS}
    return JobInfo(
        job_id=job_id,
        state=fields.get("state", ""),
        payload=fields.get("payload", ""),
        gid=fields.get("gid", ""),
        lease_token=fields.get("lease_token", ""),
        last_error=fields.get("last_error", ""),
        **numbers,
    )


def _pairs(flat: Any) -> dict[str, str]:
    """A hash as Redis sends it: a flat list, or a map where the client speaks RESP3."""
    if isinstance(flat, dict):
        return {text(name): text(value) for name, value in flat.items()}
    return {text(flat[at]): text(flat[at + 1]) for at in range(0, len(flat), 2)}


def _bounded(limit: int, most: int) -> int:
    return max(1, min(limit, most))
