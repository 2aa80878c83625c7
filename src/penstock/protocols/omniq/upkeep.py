"""The calls that keep a queue in order: promote, reap, pause, retry, remove, repair, fan-outs.

What could be long goes in bounded slices, so that nobody else waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from penstock.broker.resp import Arg
from penstock.protocols.omniq.calls import Call, Scripts, Steps, anchor, whole
from penstock.protocols.omniq.errors import (
    BadArgs,
    BadLane,
    BatchTooLarge,
    ChildRequired,
    refusal,
)
from penstock.protocols.omniq.wire import LANES, Lane, text

__all__ = ["BatchItem", "Repair", "Tended", "Upkeep"]

MAX_BATCH: Final = 100
_SLICE: Final = 1000  # ids that one promote or reap moves
_SCANNING_SLICE: Final = 10  # ids to be searched in a list, each the length of it at worst
_INDEX_SLICE: Final = 500
_NO_COUNTER: Final = -1


class BatchItem(NamedTuple):
    """What a batch call did with one id; ``reason`` is the code where ``status`` is ``ERR``."""

    job_id: str
    status: Literal["OK", "ERR"]
    reason: str | None


class Repair(NamedTuple):
    """What a rebuild found: groups whose count or readiness was wrong, ids seen while indexing."""

    groups_mended: int
    jobs_indexed: int
    mirrors: bool = False


class Tended(NamedTuple):
    """What one round did, and in how many milliseconds the next job or lease is due."""

    promoted: int
    reaped: int
    next_ms: int | None


class Upkeep:
    """Builds those calls; pure, no connection of its own."""

    def __init__(self, scripts: Scripts) -> None:
        self.scripts = scripts

    def promote(self, queue: str, *, most: int, now: int) -> Steps[int]:
        """Move due jobs to the back of their lanes; how many wait now."""
        moved = 0
        left = most
        while left > 0:
            ask = min(left, _SLICE)
            args = (whole("now_ms_override", now), ask)
            seen, waiting = yield Call(self.scripts["promote"], anchor(queue), args, list)
            moved += waiting
            left -= ask
            if seen < ask:
                break
        return moved

    def reap(self, queue: str, *, most: int, now: int) -> Steps[int]:
        """End lapsed leases; how many."""
        reaped = 0
        left = most
        while left > 0:
            ask = min(left, _SLICE)
            args = (whole("now_ms_override", now), ask)
            count = yield Call(self.scripts["reap"], anchor(queue), args, int)
            reaped += count
            left -= ask
            if count < ask:
                break
        return reaped

    def tend(self, queue: str, max_promote: int, max_reap: int, *, now: int) -> Call[Tended]:
        """Both in one transaction."""

        def read(reply: list[int]) -> Tended:
            promoted, reaped, soonest = reply
            return Tended(promoted, reaped, None if soonest < 0 else soonest)

        args = (whole("now_ms_override", now), max_promote, max_reap)
        return Call(self.scripts["tend"], anchor(queue), args, read)

    def pause(self, queue: str) -> Call[str]:
        return Call(self.scripts["pause"], anchor(queue), ("pause",), text)

    def resume(self, queue: str) -> Call[int]:
        return Call(self.scripts["pause"], anchor(queue), ("resume",), int)

    def is_paused(self, queue: str) -> Call[bool]:
        return Call(self.scripts["pause"], anchor(queue), ("look",), bool)

    def retry_failed(self, queue: str, job_id: str, *, now: int) -> Call[None]:
        """A failed job waits again with all its attempts. Raises NO_JOB or NOT_FAILED."""

        def read(reply: list[Any]) -> None:
            if text(reply[0]) != "OK":
                raise refusal("retry_failed", text(reply[0]), job_id)

        args = (whole("now_ms_override", now), job_id)
        return Call(self.scripts["retry_failed"], anchor(queue), args, read)

    def retry_failed_batch(
        self, queue: str, job_ids: Sequence[str], *, now: int
    ) -> Steps[list[BatchItem]]:
        """As `retry_failed` for up to a hundred ids, with an answer for each."""
        _check_batch(job_ids)
        items: list[BatchItem] = []
        for some in _slices(job_ids, _SCANNING_SLICE):
            args: tuple[Arg, ...] = (whole("now_ms_override", now), *some)
            reply = yield Call(self.scripts["retry_failed"], anchor(queue), args, list)
            items += _items(some, reply)
        return items

    def remove_job(self, queue: str, job_id: str, lane: str) -> Call[str]:
        """Take a job out of a lane for good. Answers ``OK``; raises the code otherwise."""

        def read(reply: list[Any]) -> str:
            if text(reply[0]) != "OK":
                raise refusal("remove_job", text(reply[0]), job_id)
            return "OK"

        return Call(self.scripts["remove_job"], anchor(queue), (0, lane, job_id), read)

    def remove_jobs_batch(
        self, queue: str, lane: Lane, job_ids: Sequence[str]
    ) -> Steps[list[BatchItem]]:
        """As `remove_job` for up to a hundred ids, with an answer for each."""
        if lane not in LANES:
            raise BadLane(f"remove_jobs_batch failed: BAD_LANE {lane!r}")
        _check_batch(job_ids)
        items: list[BatchItem] = []
        for some in _slices(job_ids, MAX_BATCH if lane == "delayed" else _SCANNING_SLICE):
            call = Call(self.scripts["remove_job"], anchor(queue), (0, lane, *some), list)
            items += _items(some, (yield call))
        return items

    def childs_init(self, key: str, expected: int) -> Call[None]:
        """Begin a fan-out of ``expected`` children. Raises BAD_EXPECTED or ALREADY_INIT."""

        def read(reply: Any) -> None:
            if text(reply) != "OK":
                raise refusal("childs_init", text(reply))

        args = ("init", whole("expected", expected))
        return Call(self.scripts["children"], _fan_out(key), args, read)

    def child_ack(self, key: str, child_id: str) -> Call[int]:
        """How many children are still missing once this one is counted; −1 without a counter."""
        if not child_id:
            raise ChildRequired("child_ack failed: CHILD_REQUIRED")

        def read(reply: Any) -> int:
            return reply if isinstance(reply, int) else _NO_COUNTER

        return Call(self.scripts["children"], _fan_out(key), ("ack", child_id), read)

    def has_mirrors(self, queue: str) -> Call[bool]:
        """Whether clients of SDK 2.0 or later, or ours with ``compat="v4"``, were here."""
        return Call(self.scripts["presence"], anchor(queue), (), bool)

    def rebuild(self, queue: str, gids: Sequence[str], *, mirrors: bool, now: int) -> Steps[Repair]:
        """Recount groups and, with ``mirrors``, rebuild the indexes and counters of SDK 4.x.

        ``gids`` are the groups that have keys; those ready or running are found besides. Each
        step is bounded and true to the state of every job it touches. What other clients change
        meanwhile without mirrors is missed, so repeat it when those have left.
        """
        stamp = whole("now_ms_override", now)
        recount = Call(self.scripts["recount"], anchor(queue), (stamp, *gids), int)
        mended = yield recount
        indexed = 0
        if mirrors:
            indexed = yield from self._reindex(queue, gids)
            yield Call(self.scripts["restat"], anchor(queue), tuple(gids), text)
        return Repair(mended, indexed, mirrors)

    def _reindex(self, queue: str, gids: Sequence[str]) -> Steps[int]:
        lanes = [("wait", "wait"), *(("wait", f"g:{gid}:wait") for gid in gids)]
        lanes += [(state, state) for state in ("active", "delayed", "failed", "completed")]
        script, key = self.scripts["reindex"], anchor(queue)
        indexed = 0
        for state, lane in lanes:
            at = 0
            while True:
                args = ("add", state, lane, at, _INDEX_SLICE)
                seen = yield Call(script, key, args, int)
                indexed += seen
                if seen < _INDEX_SLICE:
                    break
                at += _INDEX_SLICE
        for state in ("wait", "active", "delayed", "failed", "completed"):
            cursor = "0"
            while True:
                cursor = yield Call(script, key, ("prune", state, cursor), text)
                if cursor == "0":
                    break
        return indexed


def _fan_out(key: str) -> bytes:
    name = key.strip()
    if not name or len(name) > 128 or "{" in name or "}" in name:
        raise BadArgs(
            f"BAD_ARGS: {key!r} cannot name a fan-out",
            remedy="use 1 to 128 characters without braces.",
        )
    return f"{{cc:{name}}}:meta".encode()


def _check_batch(job_ids: Sequence[str]) -> None:
    if len(job_ids) > MAX_BATCH:
        raise BatchTooLarge(f"{len(job_ids)} ids at once: BATCH_TOO_LARGE")


def _slices(ids: Sequence[str], size: int) -> list[Sequence[str]]:
    return [ids[at : at + size] for at in range(0, len(ids), size)]


def _items(ids: Sequence[str], reply: list[Any]) -> list[BatchItem]:
    codes = [text(code) for code in reply]
    return [
        BatchItem(job_id, "OK", None) if code == "OK" else BatchItem(job_id, "ERR", code)
        for job_id, code in zip(ids, codes, strict=True)
    ]
