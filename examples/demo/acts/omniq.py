"""Leased, grouped queues on OmniQ, while the same processes answer calls on natq.

One worker is killed in the middle, one is asked to leave. The proof is read from Redis after
everybody has left: what each job returned, what failed and why, and that no lane holds a job.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from examples.demo.act import Act, Proof, Row
from examples.demo.acts.calls import ask
from examples.demo.acts.omniq_kinds import KINDS, Kind, Sent, sent_of
from penstock import connect
from penstock.core.errors import Problem
from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.views import JobInfo

if TYPE_CHECKING:
    from examples.demo.show import Bars, Show
    from examples.demo.stage import HiredWorker, Stage

__all__ = ["ACT", "Found", "groups_row"]

CALLS = 40
WITHIN = 110.0
LOOK_S = 0.1


class Found(NamedTuple):
    """What Redis says of one job: its answer while it is kept, and its record."""

    data: dict[str, Any]
    job: JobInfo | None


async def play(stage: Stage, show: Show, scale: float) -> Proof:
    nats, redis = await stage.nats(), await stage.redis()
    show.say(f"Redis at {redis.url}")
    sent, calls = sent_of(scale), max(1, round(CALLS * scale))
    async with connect(nats.url) as natq, OmniqClient(redis.url) as client:
        crew = [await _hire(stage, show) for _ in range(2)]
        asking = asyncio.create_task(ask(natq, calls), name="demo:calls")
        try:
            async with asyncio.timeout(WITHIN):
                await _perform(client, stage, show, crew, sent)
                answers = await asking
        except TimeoutError:
            said = "\n".join(worker.last_words() for worker in crew)
            raise Problem(f"work was left after {WITHIN:g} s; the workers said:\n{said}") from None
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        for worker in crew:
            await worker.dismiss()
        found = {one.job_id: await _found(client, one) for one in sent}
        rows = [_row(kind, sent, found) for kind in KINDS]
        rows += [groups_row(found), answers.row, await _lanes_row(client)]
        return Proof(rows, _notes(found))


async def _hire(stage: Stage, show: Show) -> HiredWorker:
    """One process that serves the same handlers on both protocols."""
    nats, redis = await stage.nats(), await stage.redis()
    worker = await stage.hire(
        *("examples.demo.shop:app", "--omniq", "--natq", "--nats", nats.url, "--redis", redis.url),
        *("--concurrency", "12", "--grace", "500ms"),
        PENSTOCK_OMNIQ__RESULT_TTL="10m",
    )
    show.say(f"{worker} is ready, on OmniQ and natq")
    return worker


async def _perform(
    client: OmniqClient, stage: Stage, show: Show, crew: list[HiredWorker], sent: Sequence[Sent]
) -> None:
    """Send, kill, replace, drain, and wait until every lane is empty."""
    totals = Counter(one.kind.queue for one in sent)
    with show.bars(totals) as bars:
        for kind in KINDS:
            drafts = [one.draft for one in sent if one.kind is kind]
            await client.publish_many(kind.queue, drafts)
        show.say(f"{len(sent)} jobs are in {len(totals)} queues")
        lanes = Lanes(client, totals, bars)
        await lanes.until(lambda: lanes.done > len(sent) // 8 and lanes.running["backup"] > 1)
        await crew[0].kill()
        show.say(f"{crew[0]} was killed with SIGKILL, its hands full")
        crew.append(await _hire(stage, show))
        await lanes.until(lambda: lanes.done > len(sent) // 2 and lanes.running["backup"] > 0)
        code = await crew[1].drain()
        show.say(f"{crew[1]} was asked to leave: gave back what it had, exit code {code}")
        await lanes.until(lambda: False)


class Lanes:
    """What is left in the lanes of every queue, looked at ten times a second."""

    def __init__(self, client: OmniqClient, totals: Counter[str], bars: Bars) -> None:
        self._client = client
        self._totals = totals
        self._bars = bars
        self.running: Counter[str] = Counter()
        self.done = 0

    async def until(self, condition: Callable[[], bool]) -> None:
        """Look until ``condition`` holds, or nothing is left and it cannot come any more."""
        while True:
            left = {queue: await self._left(queue) for queue in self._totals}
            self.done = self._totals.total() - sum(left.values())
            for queue, count in left.items():
                self._bars.at(queue, self._totals[queue] - count)
            if not any(left.values()) or condition():
                return
            await asyncio.sleep(LOOK_S)

    async def _left(self, queue: str) -> int:
        monitor = self._client.monitor
        counts = await monitor.counts(queue)
        self.running[queue] = counts.active
        lined_up = sum(group.waiting_count for group in await monitor.groups(queue))
        return counts.wait + counts.active + counts.delayed + lined_up


async def _found(client: OmniqClient, one: Sent) -> Found:
    """A finished job itself is kept for a while only; its answer for as long as was asked."""
    said = await client.result(one.kind.queue, one.job_id)
    data = msgspec.json.decode(said) if said else None
    job = await client.monitor.get_job(one.kind.queue, one.job_id)
    return Found(data if isinstance(data, dict) else {}, job)


def _row(kind: Kind, sent: Sequence[Sent], found: dict[str, Found]) -> Row:
    ours = [one for one in sent if one.kind is kind]
    outcomes = Counter(_outcome(one, found[one.job_id]) for one in ours)
    said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    again = sum(_taken_over(one, found[one.job_id]) for one in ours)
    return Row(kind.queue, kind.story, len(ours), f"{len(ours)} {kind.outcome}", said, again)


def _outcome(one: Sent, found: Found) -> str:
    if found.data:
        return "succeeded" if found.data.get("item") == one.body["item"] else "WRONG ANSWER"
    if found.job is None:
        return "LOST"
    return "failed" if found.job.state == "failed" and found.job.last_error else found.job.state


def _taken_over(one: Sent, found: Found) -> bool:
    """Handed out more often than its own failures explain."""
    return int(found.data.get("delivery", 1)) > 1 + one.body.get("fails", 0)


def groups_row(found: dict[str, Found]) -> Row:
    """Of one customer's parcels no two were under way at once, over all processes."""
    carried: dict[str, list[tuple[float, float]]] = {}
    for one in found.values():
        if "customer" in one.data:
            span = (one.data["from_s"], one.data["to_s"])
            carried.setdefault(one.data["customer"], []).append(span)
    overlaps = sum(
        later[0] < earlier[1]
        for spans in carried.values()
        for earlier, later in pairwise(sorted(spans))
    )
    story = f"of {len(carried)} groups, limit 1"
    return Row("(groups)", story, 0, "0 overlaps", f"{overlaps} overlaps")


async def _lanes_row(client: OmniqClient) -> Row:
    left = held = 0
    for kind in KINDS:
        counts = await client.monitor.counts(kind.queue)
        groups = await client.monitor.groups(kind.queue)
        left += counts.wait + counts.active + counts.delayed
        left += sum(group.waiting_count for group in groups)
        held += sum(group.inflight for group in groups)
    return Row("(the lanes)", "are empty again", 0, "0 jobs, 0 held", f"{left} jobs, {held} held")


def _notes(found: dict[str, Found]) -> list[str]:
    resumed = sorted(one.data["resumed_at"] for one in found.values() if one.data.get("resumed_at"))
    back = sum(
        one.data.get("delivery", 1) > one.data.get("attempt", 1)
        for one in found.values()
        if one.data
    )
    return [
        f"backups that went on from a checkpoint: {len(resumed)}, at steps {resumed}",
        f"jobs given back by the worker that was asked to leave, at no attempt: {back}",
    ]


ACT = Act("omniq", "OmniQ: leased, grouped queues, and natq in the same processes", play)
