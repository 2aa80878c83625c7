"""Results: dropped ones, impossible ones, unusual ones, and what a second job with one id does."""

from __future__ import annotations

import asyncio
import time

from tests.conformance.natq.checks_async import story
from tests.conformance.natq.registry import check, expect
from tests.conformance.natq.stage import Stage, fresh

__all__: list[str] = []

_SECOND = 1_000_000_000


@check("results.dropped_in_order", needs=("e2e-drop-result",))
async def dropped_in_order(stage: Stage) -> None:
    """A dropped result is recorded, ACKed, and only then deleted."""
    job = await stage.enqueue("e2e-drop-result", {"dropResultOnSuccess": True})
    await stage.until(lambda: "gone" in story(stage, job), 10, "the delete marker")
    told = story(stage, job)
    expect(told == ["put 100", "put 200", "ACK", "gone"], f"{told}")
    expect(await stage.record(job.key) is None, "the record is still there")


@check("results.errors_are_not_dropped", needs=("e2e-async-client-error",))
async def errors_are_not_dropped(stage: Stage) -> None:
    """`dropResultOnSuccess` keeps the record of a failure."""
    job = await stage.enqueue("e2e-async-client-error", {"dropResultOnSuccess": True})
    await stage.settled(job, "TERM")
    await asyncio.sleep(0.3)
    expect(await stage.statuses(job.key) == [100, 400], f"{await stage.statuses(job.key)}")


@check("results.only_true_drops", level="strict", needs=("conf-echo-async",))
async def only_true_drops(stage: Stage) -> None:
    """Only JSON `true` drops a result."""
    for value in (False, "yes", 1, None):
        job = await stage.enqueue("conf-echo-async", {"dropResultOnSuccess": value})
        await stage.settled(job, "ACK")
        await asyncio.sleep(0.1)
        expect(await stage.statuses(job.key) == [100, 200], f"{value!r}: {story(stage, job)}")


@check("results.reserved_members", level="strict", needs=("conf-echo-async",))
async def reserved_members(stage: Stage) -> None:
    """The handler's data holds neither `runId` nor `dropResultOnSuccess`."""
    job = await stage.enqueue("conf-echo-async", {"dropResultOnSuccess": False, "a": 1})
    expect((await stage.final(job.key))["data"] == {"a": 1}, "reserved members in the data")


@check("results.any_json_is_input", level="strict", needs=("conf-echo-async",))
async def any_json_is_input(stage: Stage) -> None:
    """A job whose input is an array, a text, a number or null runs once and succeeds."""
    for body in (b"[1, 2]", b'"text"', b"7", b"null"):
        job = await stage.enqueue("conf-echo-async", body)
        settled = await stage.settled(job)
        expect(settled.verb == "ACK", f"{body!r}: {settled.verb} {settled.rest}")


@check("results.falsy_data", needs=("conf-reply-async",))
async def falsy_data(stage: Stage) -> None:
    """Data that is 0, false or an empty text is recorded."""
    for value in (0, False, ""):
        job = await stage.enqueue("conf-reply-async", {"status": 200, "data": value})
        record = await stage.final(job.key)
        expect("data" in record and record["data"] == value, f"{value!r}: {record}")


@check("results.returns_nothing_settles", needs=("conf-none",))
async def returns_nothing_settles(stage: Stage) -> None:
    """A handler that returns nothing has succeeded, or is NAKed as a worker fault with 5 s."""
    job = await stage.enqueue("conf-none")
    settled = await stage.settled(job)
    fine = settled.verb == "ACK" or settled.delay_ns == 5 * _SECOND
    expect(fine, f"{settled.verb} {settled.rest}")


@check("results.returns_nothing", level="strict", needs=("conf-none",))
async def returns_nothing(stage: Stage) -> None:
    """A handler that returns nothing has succeeded without data."""
    job = await stage.enqueue("conf-none")
    settled = await stage.settled(job)
    expect(settled.verb == "ACK", f"{settled.verb} {settled.rest}")
    record = await stage.final(job.key)
    expect((record["status"], record.get("data")) == (200, None), f"record {record}")


@check("results.impossible_is_settled", needs=("conf-big", "conf-unserializable"))
async def impossible_is_settled(stage: Stage) -> None:
    """A result that cannot be stored does not bring the job back."""
    jobs = [
        await stage.enqueue("conf-big", {"bytes": 2_000_000}),
        await stage.enqueue("conf-unserializable"),
    ]
    for job in jobs:
        settled = await stage.settled(job)
        expect(settled.verb in ("ACK", "TERM"), f"{job.task}: {settled.verb} {settled.rest}")


@check("results.oversize", level="strict", needs=("conf-big",))
async def oversize(stage: Stage) -> None:
    """A result over the server's limit becomes a small 413 record, and TERM."""
    job = await stage.enqueue("conf-big", {"bytes": 2_000_000})
    settled = await stage.settled(job)
    expect(settled.verb == "TERM", f"{settled.verb} {settled.rest}")
    record = await stage.record(job.key)
    expect(record and record["status"] == 413, f"record {record}")
    expect(record.get("error") and "data" not in record, f"record {record}")
    expect((record["id"], record["taskId"]) == (job.run_id, job.task), f"ids in {record}")


@check("results.unserializable", level="strict", needs=("conf-unserializable", "conf-nan"))
async def unserializable(stage: Stage) -> None:
    """A result that JSON cannot say (NaN too) becomes a 500 record with an error, and TERM."""
    for task in ("conf-unserializable", "conf-nan"):
        job = await stage.enqueue(task)
        settled = await stage.settled(job)
        expect(settled.verb == "TERM", f"{task}: {settled.verb} {settled.rest}")
        record = await stage.record(job.key)
        expect(record and record["status"] == 500, f"{task}: record {record}")
        expect(record.get("error"), f"{task}: no error in {record}")


@check("results.second_job_with_one_id", needs=("conf-echo-async",))
async def second_job_with_one_id(stage: Stage) -> None:
    """Two jobs with one run id are both settled and the key ends final."""
    run_id = fresh("twin")
    jobs = [await stage.enqueue("conf-echo-async", {"n": n}, run_id=run_id) for n in (1, 2)]
    for job in jobs:
        await stage.settled(job, "ACK")
    expect((await stage.final(jobs[0].key))["status"] == 200, "the key did not end at 200")


@check("results.final_is_final", level="strict", needs=("conf-echo-async",))
async def final_is_final(stage: Stage) -> None:
    """A job whose run id has a final record is ACKed without running and changes nothing."""
    first = await stage.enqueue("conf-echo-async", {"n": 1})
    await stage.settled(first, "ACK")
    second = await stage.enqueue("conf-echo-async", {"n": 2}, run_id=first.run_id)
    await stage.settled(second, "ACK")
    statuses = await stage.statuses(first.key)
    expect(statuses == [100, 200], f"records {statuses}")
    expect((await stage.final(first.key))["data"] == {"n": 1}, "the second result won")


@check("results.live_is_not_run_twice", level="strict", needs=("e2e-delay",))
async def live_is_not_run_twice(stage: Stage) -> None:
    """A second job with the run id of a running one is ACKed without running."""
    first = await stage.enqueue("e2e-delay", {"delayMs": 1500})
    await stage.until(lambda: bool(stage.tap.puts(first.key)), 5, "the first job's start")
    second = await stage.enqueue("e2e-delay", {"delayMs": 1}, run_id=first.run_id)
    await stage.settled(second, "ACK")
    await stage.settled(first, "ACK")
    statuses = await stage.statuses(first.key)
    expect(statuses == [100, 200], f"records {statuses}")


@check("results.heartbeat", needs=("conf-sleep",))
async def heartbeat(stage: Stage) -> None:
    """A long job says `+WPI` at least every 10 s and is delivered once."""
    started = time.monotonic()
    job = await stage.enqueue("conf-sleep", {"ms": 11_500})
    await stage.settled(job, "ACK", within=25)
    beats = [said.at - started for said in stage.tap.about(job.seq, "WPI")]
    expect(beats, "no heartbeat in 11.5 s")
    expect(beats[0] < 11.2, f"the first heartbeat came after {beats[0]:.1f} s")
    expect(await stage.statuses(job.key) == [100, 200], "it was delivered more than once")
