"""Tasks on natq: two workers, one killed in the middle, one asked to leave, nothing lost.

The proof is read from the records on the server, after everybody has left: each run id that
was sent must have its one final record, with the status and the answer that belong to it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from examples.demo.act import Act, Proof, Row
from examples.demo.acts.calls import Answers, ask
from examples.demo.acts.natq_kinds import KINDS, Kind, Sent, outcome_of, sent_of
from examples.demo.acts.natq_track import Track
from penstock import Client, connect
from penstock.broker.streams import ConsumerConfig
from penstock.core.errors import Problem
from penstock.protocols.natq.client import Job
from penstock.protocols.natq.wire import Output, consumer_name

if TYPE_CHECKING:
    from examples.demo.show import Show
    from examples.demo.stage import HiredWorker, Stage

__all__ = ["ACT"]

ACK_WAIT = timedelta(seconds=6)  # 30 s unless somebody says otherwise: long for an audience
CALLS = 40
WITHIN = 110.0


async def play(stage: Stage, show: Show, scale: float) -> Proof:
    nats = await stage.nats()
    show.say(f"NATS with JetStream at {nats.url}")
    sent, calls = sent_of(scale), max(1, round(CALLS * scale))
    async with connect(nats.url) as client:
        await _shorten_leases(client)
        crew = [await _hire(stage, show, nats.url) for _ in range(2)]
        asking = asyncio.create_task(ask(client, calls), name="demo:calls")
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
        return await _proof(client, sent, answers)


async def _shorten_leases(client: Client) -> None:
    """Make the shared consumers before a worker does, with a shorter ack wait."""
    room = client.natq.room
    for kind in KINDS:
        config = ConsumerConfig(
            durable_name=consumer_name(kind.task),
            filter_subject=room.options.async_prefix + kind.task,
            ack_policy="explicit",
            deliver_policy="all",
            ack_wait=ACK_WAIT,
        )
        await room.jetstream.ensure_consumer(room.options.stream, config)


async def _hire(stage: Stage, show: Show, url: str) -> HiredWorker:
    worker = await stage.hire(
        "examples.demo.shop:app",
        *("--natq", "--nats", url, "--concurrency", "12", "--grace", "500ms"),
        PENSTOCK_NATQ__HEARTBEAT="1s",
        PENSTOCK_WORKER__CPU_PROCESSES="1",
    )
    show.say(f"{worker} is ready")
    return worker


async def _perform(
    client: Client, stage: Stage, show: Show, crew: list[HiredWorker], sent: Sequence[Sent]
) -> None:
    """Send, kill, replace, drain, and wait until every run has its final record."""
    totals = Counter(one.kind.task for one in sent)
    with show.bars(totals) as bars:
        async with Track.of(client, bars, len(sent)) as track:
            jobs = [Job(one.kind.task, one.body, one.run_id) for one in sent]
            await client.natq.enqueue_many(jobs)
            show.say(f"{len(sent)} jobs of {len(totals)} kinds are in the queue")
            few, half = len(sent) // 8, len(sent) // 2
            await track.until(lambda: track.done > few and track.running("backup") > 1)
            await crew[0].kill()
            show.say(f"{crew[0]} was killed with SIGKILL, its hands full")
            crew.append(await _hire(stage, show, (await stage.nats()).url))
            await track.until(lambda: track.done > half and track.running("backup") > 0)
            code = await crew[1].drain()
            show.say(f"{crew[1]} was asked to leave: gave back what it had, exit code {code}")
            await track.finished()


async def _proof(client: Client, sent: Sequence[Sent], answers: Answers) -> Proof:
    found: dict[str, list[Output | None]] = {}
    for kind in KINDS:
        runs = [client.status(kind.task, one.run_id) for one in sent if one.kind is kind]
        found[kind.task] = await asyncio.gather(*runs)
    dead = await client.admin("natq").find(state="dead", limit=len(sent) + 1)
    buried = Counter(letter.name for letter in dead.items)
    rows = [
        _row(kind, [one for one in sent if one.kind is kind], found[kind.task], buried[kind.task])
        for kind in KINDS
    ]
    rows.append(answers.row)
    rows.append(await _queue_row(client))
    return Proof(rows, _notes(found))


def _row(kind: Kind, sent: Sequence[Sent], found: Sequence[Output | None], buried: int) -> Row:
    outcomes = Counter(outcome_of(one, output) for one, output in zip(sent, found, strict=True))
    expected = f"{len(sent)} {kind.outcome}"
    said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    if kind.buried or buried:
        expected += f", {len(sent) if kind.buried else 0} dead"
        said += f", {buried} dead"
    again = sum(_taken_over(one, output) for one, output in zip(sent, found, strict=True))
    return Row(kind.task, kind.story, len(sent), expected, said, again)


async def _queue_row(client: Client) -> Row:
    """What is left in the queue: nothing, once the last acknowledgements have arrived."""
    room = client.natq.room
    left = 0
    for _ in range(50):
        left = (await room.jetstream.stream_info(room.options.stream)).state.messages
        if left == 0:
            break
        await asyncio.sleep(0.1)
    return Row("(the queue)", "is empty again", 0, "0 messages", f"{left} messages")


def _data(output: Output | None) -> dict[str, Any]:
    data = output.data if output is not None else None
    return data if isinstance(data, dict) else {}


def _taken_over(one: Sent, output: Output | None) -> bool:
    """Handed out more often than its own failures explain."""
    return int(_data(output).get("delivery", 1)) > 1 + one.body.get("fails", 0)


def _notes(found: dict[str, list[Output | None]]) -> list[str]:
    resumed = [_data(output) for output in found["backup"] if _data(output).get("resumed_at")]
    given_back = sum(
        _data(output).get("delivery", 1) > _data(output).get("attempt", 1)
        for outputs in found.values()
        for output in outputs
    )
    steps = msgspec.json.encode(sorted(one["resumed_at"] for one in resumed)).decode()
    return [
        f"backups that went on from a checkpoint: {len(resumed)}, at steps {steps}",
        f"jobs given back by the worker that was asked to leave, at no attempt: {given_back}",
    ]


ACT = Act("natq", "natq: tasks on a work queue", play)
