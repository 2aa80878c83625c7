"""What the kill tests of grouped queues share: a load, consumers to kill, an auditor, and laws.

The auditor is one script that looks at the whole queue at one instant, again and again while
consumers die: no group may ever have more leases than its limit, and its counter must say so.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis as redis_py
import redis.asyncio as aio_redis_py

from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.store import Draft
from tests.chaos.harness import Program, Unmet, eventually
from tests.chaos.invariants import Ledger, Violation
from tests.protocols.omniq.invariants import check_invariants

__all__ = ["LEASE_MS", "GroupsStage", "Lines", "limit_of"]

LEASE_MS = 2_000
_AUDIT = """
local base, found = ARGV[1], {}
local count = {}
for _, id in ipairs(redis.call('ZRANGE', base .. ':active', 0, -1)) do
  local gid = redis.call('HGET', base .. ':job:' .. id, 'gid')
  if gid then count[gid] = (count[gid] or 0) + 1 end
end
for gid, running in pairs(count) do
  local limit = tonumber(redis.call('GET', base .. ':g:' .. gid .. ':limit') or '1')
  local told = tonumber(redis.call('GET', base .. ':g:' .. gid .. ':inflight') or '0')
  if running > limit or told ~= running then
    found[#found + 1] = gid .. ': ' .. running .. ' run, ' .. told .. ' told, limit ' .. limit
  end
end
return found
"""


def limit_of(group: int) -> int:
    """Every other group runs one job at a time, so that its order can be seen; the others three."""
    return 1 if group % 2 == 0 else 3


@dataclass
class GroupsStage:
    """One queue on one Redis. ``audits`` counts the instants that were looked at."""

    url: str
    folder: Path
    queue: str = "chaos"
    ledger: Ledger = field(default_factory=Ledger)
    published: list[str] = field(default_factory=list)
    audits: int = 0
    over: list[str] = field(default_factory=list)

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    def consumer(self, env: Mapping[str, str] | None = None, *, concurrency: int = 8) -> Program:
        """A consumer of its own process; ``env`` may say where it dies."""
        args = (self.url, self.queue, str(self.journal), str(concurrency))
        return Program.python("tests.chaos.omniq_groups_app", *args, env=env)

    async def load(self, jobs: int, groups: int) -> None:
        """Publish them in turns over the groups, each acknowledged before it counts."""
        async with OmniqClient(self.url) as client:
            for first in range(0, jobs, 500):
                drafts = [
                    Draft(
                        payload={},
                        job_id=f"{n:06}",
                        gid=f"g{n % groups}",
                        group_limit=limit_of(n % groups),
                    )
                    for n in range(first, min(first + 500, jobs))
                ]
                ids = await client.publish_many(
                    self.queue, drafts, timeout_ms=LEASE_MS, backoff_ms=0, max_attempts=50
                )
                self.published += ids

    async def empty(self) -> bool:
        """Whether no job is left in any state that is not final."""
        async with self._raw() as raw:
            base = f"{{{self.queue}}}"
            return not await raw.exists(
                f"{base}:active", f"{base}:delayed", f"{base}:wait", f"{base}:groups:ready"
            )

    async def drained(self, within: float, *by: Program) -> None:
        """Return when nothing is left; a failure tells what the consumers said."""
        try:
            await eventually(self.empty, within, what="the end of the work", every=0.1)
        except Unmet as error:
            for one in by:
                one.signal(signal.SIGUSR1)
            await asyncio.sleep(1)  # the test has failed; this is for its message
            said = "\n".join(f"exit code {one.exit_code}:\n{one.output[-6000:]}" for one in by)
            raise Unmet(f"{error}\n{await self._left()}\n{said}") from None

    async def _left(self) -> str:
        """What is still there, for the message of a failure."""
        async with self._raw() as raw:
            base = f"{{{self.queue}}}"
            left = {"time": await raw.time()}
            for lane in ("active", "delayed", "groups:ready"):
                left[lane] = await raw.zrange(f"{base}:{lane}", 0, 20, withscores=True)
            for key in await raw.keys(f"{base}:g:*:wait"):
                left[key] = await raw.llen(key)
            return str(left)

    @asynccontextmanager
    async def audited(self) -> AsyncIterator[None]:
        """The auditor at work. A Redis that is down for a while is looked at when it is back."""
        enough = asyncio.Event()  # redis-py loses a cancellation now and then
        looking = asyncio.create_task(self._audit(enough), name="auditor")
        try:
            yield
        finally:
            enough.set()
            await looking

    def judge(self) -> list[Violation]:
        """All laws, over the journal, the keys and what the auditor saw."""
        lines = Lines.of(self.journal)
        with redis_py.Redis.from_url(self.url, decode_responses=True) as raw:
            check_invariants(raw, self.queue)
            failed = raw.lrange(f"{{{self.queue}}}:failed", 0, -1)
        return [
            *(Violation("none lost", id, "never finished") for id in self._unfinished(lines)),
            *(Violation("none failed", id, "out of attempts") for id in failed),
            *(Violation("no group over its limit", "", seen) for seen in self.over[:5]),
            *lines.over_their_limits(),
            *lines.out_of_order(),
        ]

    def _unfinished(self, lines: Lines) -> list[str]:
        return sorted(
            set(self.published) - {line[1] for line in lines.all if line[0] == "finished"}
        )

    async def _audit(self, enough: asyncio.Event) -> None:
        async with self._raw() as raw:
            while not enough.is_set():
                try:
                    self.over += await raw.eval(_AUDIT, 0, f"{{{self.queue}}}")
                    self.audits += 1
                except redis_py.RedisError:
                    await asyncio.sleep(0.05)
                await asyncio.sleep(0.005)

    @asynccontextmanager
    async def _raw(self) -> AsyncIterator[Any]:
        raw = aio_redis_py.Redis.from_url(self.url, decode_responses=True)
        try:
            yield raw
        finally:
            await raw.aclose()


@dataclass
class Lines:
    """The journal: kind, job id, gid, attempt, process; in the order of happening."""

    all: list[tuple[str, str, str, int, str]]

    @classmethod
    def of(cls, path: Path) -> Lines:
        ledger = Ledger()
        ledger.read_journal(path)
        facts = []
        for fact in ledger:
            gid, attempt = fact.detail.split()
            facts.append((fact.kind, fact.id, gid, int(attempt), fact.source))
        return cls(facts)

    def over_their_limits(self) -> list[Violation]:
        """Handlers that ran at one time. Who died runs nothing after its last word."""
        last_word = {line[4]: at for at, line in enumerate(self.all)}
        ends: dict[int, list[str]] = defaultdict(list)
        open_runs: dict[tuple[str, int], str] = {}
        running: Counter[str] = Counter()
        found = []
        for at, (kind, id, gid, attempt, who) in enumerate(self.all):
            if kind == "started":
                open_runs[id, attempt] = who
                running[gid] += 1
                limit = limit_of(int(gid[1:]))
                if running[gid] > limit:
                    found.append(Violation("limit", gid, f"{running[gid]} run, {id} above {limit}"))
                ends[last_word[who]].append(f"{id} {attempt} {gid}")
            elif open_runs.pop((id, attempt), None):
                running[gid] -= 1
            for gone in ends.pop(at, ()):
                dead_id, dead_attempt, dead_gid = gone.split()
                if open_runs.pop((dead_id, int(dead_attempt)), None):
                    running[dead_gid] -= 1
        return found

    def out_of_order(self) -> list[Violation]:
        """In groups of one: first attempts begin in the order of publishing.

        A job that was leased to a process which died before it began is not among them: its
        second attempt comes when its lease has lapsed.
        """
        order: dict[str, list[str]] = defaultdict(list)
        for kind, id, gid, attempt, _ in self.all:
            if kind == "started" and attempt == 1 and limit_of(int(gid[1:])) == 1:
                order[gid].append(id)
        return [
            Violation("first in, first out", gid, f"{ids}")
            for gid, ids in order.items()
            if ids != sorted(ids) or len(ids) != len(set(ids))
        ]
