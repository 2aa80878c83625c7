"""Several workers, and workers that stop, die or lose what they stand on.

Each check here has a server of its own.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.chaos.frames import Frame
from tests.chaos.proxy import FaultProxy
from tests.conformance.natq.registry import check, expect
from tests.conformance.natq.stage import Job, Stage

__all__: list[str] = []

_SECOND = 1_000_000_000
_SHORT_ACK_WAIT = 2 * _SECOND


async def prepared_consumer(stage: Stage, task: str, ack_wait: int) -> None:
    """Make stream and consumer before the worker does: a short ack wait saves half a minute."""
    stream = {"name": "natq_jobs", "subjects": ["natq.job.>"], "retention": "workqueue"}
    await stage.api("STREAM.CREATE.natq_jobs", {**stream, "discard": "new"})
    name = f"natq_worker_{task}"
    config = {
        "durable_name": name,
        "filter_subject": f"natq.job.{task}",
        "ack_policy": "explicit",
        "ack_wait": ack_wait,
    }
    body = {"stream_name": "natq_jobs", "config": config}
    await stage.api(f"CONSUMER.DURABLE.CREATE.natq_jobs.{name}", body)


async def replies_to(stage: Stage, task: str, within: float) -> int:
    """How many replies one request gets."""
    inbox = stage.client.new_inbox()
    replies = await stage.client.subscribe(inbox)
    await stage.client.publish(f"natq.req.{task}", b'{"a": 1, "b": 1}', reply=inbox)
    await stage.client.flush()
    await asyncio.sleep(within)
    count = replies.pending_msgs
    await replies.unsubscribe()
    return count


@check("fleet.one_reply_from_three", level="strict", own_server=True, needs=("e2e-add",))
async def one_reply_from_three(stage: Stage) -> None:
    """Of three workers one answers a request."""
    await asyncio.gather(*(stage.add_worker() for _ in range(3)))
    for _ in range(5):
        count = await replies_to(stage, "e2e-add", within=0.25)
        expect(count == 1, f"{count} replies to one request")


@check("fleet.load_is_shared", own_server=True, needs=("conf-sleep",))
async def load_is_shared(stage: Stage) -> None:
    """Two workers share the jobs of one task; each job is run once."""
    await asyncio.gather(stage.add_worker(), stage.add_worker())
    jobs: list[Job] = []
    workers: set[str] = set()
    deadline = time.monotonic() + 15
    while len(workers) < 2 and time.monotonic() < deadline:  # who gets how many is left open
        wave = [await stage.enqueue("conf-sleep", {"ms": 60}) for _ in range(24)]
        workers |= {one["data"]["worker"] for one in await all_final(stage, wave, within=15)}
        jobs += wave
    expect(len(workers) == 2, f"{len(workers)} worker(s) did all {len(jobs)} jobs")
    await each_ran_once(stage, jobs)


@check("fleet.job_survives_sigkill", own_server=True, needs=("conf-sleep",))
async def job_survives_sigkill(stage: Stage) -> None:
    """A job whose worker was killed while running it is finished by another."""
    await prepared_consumer(stage, "conf-sleep", _SHORT_ACK_WAIT)
    first = await stage.add_worker()
    job = await stage.enqueue("conf-sleep", {"ms": 1000})
    await stage.until(lambda: bool(stage.tap.puts(job.key)), 10, "the start of the job")
    first.kill(group=True)
    await first.wait()
    await stage.add_worker()

    record = await stage.final(job.key, 20)
    expect(record["status"] == 200, f"record {record}")
    statuses = await stage.statuses(job.key)
    expect(statuses[-1] == 200 and set(statuses[:-1]) == {100}, f"records {statuses}")


@check("fleet.finished_is_not_rerun", level="strict", own_server=True, needs=("e2e-delay",))
async def finished_is_not_rerun(stage: Stage) -> None:
    """A job that was finished, but whose ACK was lost in a crash, is ACKed and not run again."""
    await prepared_consumer(stage, "e2e-delay", _SHORT_ACK_WAIT)
    async with FaultProxy.to(stage.url) as proxy:
        proxy.drop(matching=_is_ack, towards="server")
        first = await stage.add_worker(url=proxy.url)
        job = await stage.enqueue("e2e-delay", {"delayMs": 50})
        await stage.final(job.key, 10)
        await proxy.dropped_at_least(1)
        first.kill(group=True)
        await first.wait()
    await stage.add_worker()

    await stage.settled(job, "ACK", within=15)
    statuses = await stage.statuses(job.key)
    expect(statuses == [100, 200], f"records {statuses}: a final record went back to 100")


@check("fleet.consumer_deleted", level="strict", own_server=True, needs=("e2e-delay",))
async def consumer_deleted(stage: Stage) -> None:
    """A worker whose consumer is deleted under it makes it again and goes on."""
    await stage.add_worker()
    before = await stage.enqueue("e2e-delay", {"delayMs": 10})
    await stage.settled(before, "ACK")
    await stage.api("CONSUMER.DELETE.natq_jobs.natq_worker_e2e-delay")
    after = await stage.enqueue("e2e-delay", {"delayMs": 10})
    record = await stage.final(after.key, 15)
    expect(record["status"] == 200, f"record {record}")


@check("fleet.server_restart", own_server=True, needs=("e2e-delay", "e2e-add"))
async def server_restart(stage: Stage) -> None:
    """After a restart of the server jobs and requests go on."""
    await stage.add_worker()
    assert stage.server is not None
    await stage.server.restart()
    await stage.until(lambda: stage.client.is_connected, 10, "our own reconnection")
    job = await stage.enqueue("e2e-delay", {"delayMs": 10})
    record = await stage.final(job.key, 25)
    expect(record["status"] == 200, f"record {record}")
    await stage.listening()


@check(
    "fleet.sigterm_under_load",
    level="strict",
    own_server=True,
    needs=("conf-sleep", "conf-sleep-sync"),
)
async def sigterm_under_load(stage: Stage) -> None:
    """SIGTERM: what runs is finished, the rest goes back at once, the exit code is 0."""
    first = await stage.add_worker()
    jobs = [await stage.enqueue("conf-sleep", {"ms": 700}) for _ in range(300)]
    await stage.until(lambda: bool(stage.tap.puts("conf-sleep.")), 10, "the first start")
    asked = asyncio.create_task(
        stage.request("conf-sleep-sync", {"ms": 500}, timeout=10), name="request"
    )
    await asyncio.sleep(0.2)
    running = {put.key for put in stage.tap.puts("conf-sleep.")}
    first.terminate()
    code = await first.wait(12)
    expect(code == 0, f"exit code {code}")
    expect((await asked).status == "200", "the request in flight was not answered with 200")
    unfinished = [key for key in running if (await stage.statuses(key))[-1:] == [100]]
    expect(not unfinished, f"{len(unfinished)} of {len(running)} running jobs were not finished")

    await stage.add_worker()
    given_back_at = time.monotonic()
    await all_final(stage, jobs, within=22)
    took = time.monotonic() - given_back_at
    expect(took < 20, f"the rest took {took:.0f} s: it was not given back")
    await each_ran_once(stage, jobs)


@check("fleet.sigterm_when_idle", level="strict", own_server=True, needs=())
async def sigterm_when_idle(stage: Stage) -> None:
    """An idle worker leaves within five seconds of SIGTERM, with exit code 0."""
    worker = await stage.add_worker()
    worker.terminate()
    code = await worker.wait(5)
    expect(code == 0, f"exit code {code}")


async def all_final(stage: Stage, jobs: list[Job], within: float) -> list[dict[str, Any]]:
    """The final records of all jobs, in their order."""
    deadline = time.monotonic() + within
    return [await stage.final(job.key, max(0.1, deadline - time.monotonic())) for job in jobs]


async def each_ran_once(stage: Stage, jobs: list[Job]) -> None:
    """One 100 and one 200 per job; a 100 that was withdrawn when the job was given back is fine."""
    found = {job.key: await stage.statuses(job.key) for job in jobs}
    again = {key: seen for key, seen in found.items() if _since_withdrawn(seen) != [100, 200]}
    some = list(again.items())[:1]
    expect(not again, f"{len(again)} of {len(jobs)} did not run exactly once, such as {some}")


def _since_withdrawn(statuses: list[Any]) -> list[Any]:
    while statuses[:2] == [100, None]:
        statuses = statuses[2:]
    return statuses


def _is_ack(frame: Frame) -> bool:
    return frame.subject.startswith(b"$JS.ACK.") and frame.payload in (b"", b"+ACK")
