"""Slots: how many jobs under one key may run, and how many may start in a while.

What has been granted lies in one row per key, and granting is one compare-and-set of it: no two
instances can grant the same slot. A slot is not given back by a write of its own; whoever
grants the next one looks which jobs still run. A crash between grant and claim costs the slot for
`_UNCLAIMED_MS` and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.protocols.ojs.names import queue_token
from penstock.protocols.ojs.refusal import Refusal
from penstock.protocols.ojs.table import Table
from penstock.protocols.ojs.throttle import RateLimit

__all__ = ["LimitRow", "Slots", "grant", "queue_key", "standing"]

_UNCLAIMED_MS: Final = 10_000
_MAX_STAMPS: Final = 200

Runs = Callable[[str, int, int], bool]
"""Whether a job's attempt, granted at that millisecond, still counts."""


class LimitRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``starts``: (millisecond, how many); beyond 200 in a window, neighbours are counted at
    the time of the last of them, so the limit is never exceeded."""

    key: str
    policy: RateLimit = RateLimit()
    starts: tuple[tuple[int, int], ...] = ()
    slots: dict[str, tuple[int, int]] = {}
    hold_until_ms: int = 0
    override: RateLimit | None = None
    override_until_ms: int = 0

    def in_force(self, now_ms: int) -> RateLimit:
        if self.override is not None and now_ms < (self.override_until_ms or now_ms + 1):
            return self.override
        return self.policy


class Granted(Struct, frozen=True):
    """Who may start, and when it is worth asking again (zero: when a job ends)."""

    ids: tuple[str, ...]
    again_ms: int = 0


def grant(
    row: LimitRow, asked: Iterable[tuple[str, int]], now_ms: int, runs: Runs
) -> tuple[LimitRow, Granted]:
    """Give slots to as many of ``asked`` (job, attempt) as the policy allows."""
    policy = row.in_force(now_ms)
    slots = {job: s for job, s in row.slots.items() if runs(job, *s)}
    starts = [s for s in row.starts if s[0] > now_ms - _memory_ms(policy)]
    granted: list[str] = []
    again_ms = 0
    for job, attempt in asked:
        free_at = _free_at(policy, starts, now_ms, row.hold_until_ms)
        if free_at is None or free_at > now_ms:
            again_ms = free_at or 0
            break
        others = len(slots) - (job in slots)
        if policy.concurrency is not None and others >= policy.concurrency:
            again_ms = 0
            break
        granted.append(job)
        if policy.concurrency is not None:
            slots[job] = (attempt, now_ms)
        if policy.rate_limit is not None or policy.throttle_limit is not None:
            _note_start(starts, now_ms, policy)
    kept = replace(row, slots=slots, starts=tuple(starts))
    return kept, Granted(tuple(granted), again_ms)


def standing(row: LimitRow, now_ms: int, runs: Runs) -> tuple[int, int, int]:
    """(active, starts in the window, when the next start is allowed)."""
    policy = row.in_force(now_ms)
    active = sum(runs(job, *slot) for job, slot in row.slots.items())
    window = policy.rate_period_s * 1000
    count = sum(n for at, n in row.starts if at > now_ms - window)
    free_at = _free_at(policy, list(row.starts), now_ms, row.hold_until_ms)
    return active, count, free_at or 0


def queue_key(queue: str) -> str:
    """The key under which a queue's own limits are counted; no client can name it."""
    return f"={queue}"


class Slots:
    """Grants, over the table of all limits."""

    def __init__(self, table: Table[LimitRow], runs: Runs) -> None:
        self.table = table
        self._runs = runs

    def get(self, key: str) -> LimitRow | None:
        return self.table.get(queue_token(key))

    def standing(self, row: LimitRow, now_ms: int) -> tuple[int, int, int]:
        return standing(row, now_ms, self._runs)

    async def declare(self, policy: RateLimit) -> None:
        """The last policy seen for a key holds."""

        def decide(row: LimitRow | None) -> LimitRow:
            if row is None:
                return LimitRow(key=policy.key, policy=policy)
            return row if row.policy == policy else replace(row, policy=policy)

        row = self.get(policy.key)
        if row is None or row.policy != policy:
            await self.table.change(queue_token(policy.key), decide)

    async def hold(self, key: str, until_ms: int) -> None:
        """Let nothing start under ``key`` before then."""
        await self.table.change(
            queue_token(key),
            lambda row: replace(row or LimitRow(key=key), hold_until_ms=until_ms),
        )

    async def override(self, key: str, policy: RateLimit | None, until_ms: int) -> LimitRow:
        def decide(row: LimitRow | None) -> LimitRow:
            return replace(row or LimitRow(key=key), override=policy, override_until_ms=until_ms)

        done = await self.table.change(queue_token(key), decide)
        assert isinstance(done, LimitRow)  # it never refuses
        return done

    async def take(
        self,
        key: str,
        asked: list[tuple[str, int]],
        now_ms: int,
        policy: RateLimit | None = None,
    ) -> Granted:
        """Ask for slots; what is granted is written before this returns."""
        answer = Granted(())

        def decide(row: LimitRow | None) -> LimitRow | Refusal:
            nonlocal answer
            start = row or LimitRow(key=key)
            if policy is not None and start.policy != policy:
                start = replace(start, policy=policy)
            kept, answer = grant(start, asked, now_ms, self._runs)
            return kept if answer.ids else Refusal("rate_limited", f"nothing free under {key}")

        await self.table.change(queue_token(key), decide)
        return answer

    async def give_back(self, key: str, job_ids: Iterable[str]) -> None:
        """What was granted was not used after all."""
        ids = set(job_ids)

        def decide(row: LimitRow | None) -> LimitRow | None:
            if row is None:
                return None
            slots = {job: s for job, s in row.slots.items() if job not in ids}
            starts = _without_newest(row.starts, len(ids))
            return replace(row, slots=slots, starts=starts)

        await self.table.change(queue_token(key), decide)


def policy_of_queue(
    per_second: float | None, limit: int | None, period_s: float, concurrency: int | None
) -> RateLimit | None:
    """The limits of a queue as one policy; ``None`` if there are none. What a job asked for
    with ``max_per_second`` wins over the queue's configured rate."""
    if per_second is None and limit is None and concurrency is None:
        return None
    rate, rate_period = limit, period_s
    if per_second is not None:
        count = max(int(per_second), 1)
        rate, rate_period = count, count / per_second
    return RateLimit(concurrency=concurrency, rate_limit=rate, rate_period_s=rate_period)


def still_counts(state: str, attempt_now: int, attempt: int, granted_ms: int, now_ms: int) -> bool:
    """Whether a slot of ``attempt`` is in use, as far as the job's record tells."""
    if attempt_now == attempt:
        return state == "active"
    return attempt_now < attempt and now_ms - granted_ms < _UNCLAIMED_MS


def _free_at(
    policy: RateLimit, starts: list[tuple[int, int]], now_ms: int, hold_until_ms: int
) -> int | None:
    """When one more start is allowed as far as time goes; ``None`` for never."""
    free = max(now_ms, hold_until_ms)
    if policy.rate_limit is not None:
        if policy.rate_limit <= 0:
            return None
        window = round(policy.rate_period_s * 1000)
        free = max(free, _window_free(starts, policy.rate_limit, window, now_ms))
    if policy.throttle_limit is not None:
        if policy.throttle_limit <= 0:
            return None
        gap = policy.throttle_period_s * 1000 / policy.throttle_limit
        if starts:
            free = max(free, starts[-1][0] + round(gap))
    return free


def _window_free(starts: list[tuple[int, int]], limit: int, window_ms: int, now_ms: int) -> int:
    used = 0
    for at, count in reversed(starts):
        if at <= now_ms - window_ms:
            break
        used += count
        if used >= limit:
            return at + window_ms
    return now_ms


def _note_start(starts: list[tuple[int, int]], now_ms: int, policy: RateLimit) -> None:
    grain = 0
    if (policy.rate_limit or 0) > _MAX_STAMPS:
        grain = round(policy.rate_period_s * 1000 / _MAX_STAMPS)
    if starts and (starts[-1][0] == now_ms or now_ms - starts[-1][0] < grain):
        starts[-1] = (now_ms, starts[-1][1] + 1)
    else:
        starts.append((now_ms, 1))


def _without_newest(starts: tuple[tuple[int, int], ...], count: int) -> tuple[tuple[int, int], ...]:
    kept = list(starts)
    while count > 0 and kept:
        at, there = kept.pop()
        if there > count:
            kept.append((at, there - count))
        count -= there
    return tuple(kept)


def _memory_ms(policy: RateLimit) -> int:
    spans = [1000.0]
    if policy.rate_limit is not None:
        spans.append(policy.rate_period_s * 1000)
    if policy.throttle_limit:
        spans.append(policy.throttle_period_s * 1000 / policy.throttle_limit)
    return round(max(spans))
