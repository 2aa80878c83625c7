"""Jobs: records, settlements and their order, retries, and input that must be refused."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

from tests.conformance.natq.registry import check, expect
from tests.conformance.natq.stage import Job, Stage, fresh
from tests.conformance.natq.tap import Put, Settlement, parsed

__all__: list[str] = []

_SECOND = 1_000_000_000


def story(stage: Stage, job: Job) -> list[str]:
    """What was said about a job and its key, in order: ``put 100``, ``put 200``, ``ACK``."""
    told = []
    for said in stage.tap.heard:
        if isinstance(said, Settlement) and said.seq == job.seq and said.verb != "WPI":
            told.append(said.verb)
        if isinstance(said, Put) and said.key == job.key:
            record = parsed(said.value) if said.value is not None else None
            told.append(f"put {record['status']}" if record else "gone")
    return told


@check("async.record_sequence", needs=("e2e-delay",))
async def record_sequence(stage: Stage) -> None:
    """A successful job leaves exactly the records 100 and 200, both with its ids."""
    job = await stage.enqueue("e2e-delay", {"delayMs": 50})
    await stage.settled(job, "ACK")
    records = await stage.history(job.key)
    expect([record["status"] for record in records] == [100, 200], f"{records}")
    for record in records:
        ids = (record.get("id"), record.get("taskId"))
        expect(ids == (job.run_id, job.task), f"ids {ids} in {record}")
    expect("data" not in records[0], f"data before the handler: {records[0]}")
    expect(records[1].get("data") == {"delayed": True}, f"{records[1]}")
    expect("error" not in records[1], f"an error in a success: {records[1]}")


@check("async.final_record_before_ack", needs=("e2e-delay", "e2e-async-client-error"))
async def final_record_before_ack(stage: Stage) -> None:
    """The final record is written before the ACK or TERM is sent."""
    good = await stage.enqueue("e2e-delay", {"delayMs": 20})
    bad = await stage.enqueue("e2e-async-client-error")
    await asyncio.gather(stage.settled(good, "ACK"), stage.settled(bad, "TERM"))
    expect(story(stage, good) == ["put 100", "put 200", "ACK"], f"{story(stage, good)}")
    expect(story(stage, bad) == ["put 100", "put 400", "TERM"], f"{story(stage, bad)}")


@check("async.status_decides", needs=("conf-reply-async",))
async def status_decides(stage: Stage) -> None:
    """Below 300 the message is ACKed, from 300 to 499 it is TERMed; both are recorded."""
    for status, verb in ((150, "ACK"), (204, "ACK"), (302, "TERM"), (404, "TERM"), (499, "TERM")):
        error = {"error": f"why {status}"} if status >= 300 else {}
        said = {"status": status, "data": {"n": status}, **error}
        job = await stage.enqueue("conf-reply-async", said)
        settled = await stage.settled(job)
        expect(settled.verb == verb, f"{status}: {settled.verb}")
        record = (await stage.history(job.key))[-1]
        wanted = {"id": job.run_id, "taskId": job.task, **said}
        expect(record == wanted, f"{status}: recorded {record}")


@check("async.term_reason", level="strict", needs=("e2e-async-client-error",))
async def term_reason(stage: Stage) -> None:
    """A TERM carries the error as its reason."""
    job = await stage.enqueue("e2e-async-client-error")
    settled = await stage.settled(job, "TERM")
    expect("Async client error" in settled.rest, f"reason {settled.rest!r}")


@check("async.no_retry_after_400", needs=("e2e-async-client-error",))
async def no_retry_after_400(stage: Stage) -> None:
    """A job that ended with 400 leaves the queue at its first delivery and never returns."""
    job = await stage.enqueue("e2e-async-client-error")
    await stage.settled(job, "TERM")
    await stage.until(lambda: _left(stage, job), 5, "the message's departure from natq_jobs")
    await asyncio.sleep(2.5)  # a mistaken first retry would come after 2 s
    told = story(stage, job)
    expect(told == ["put 100", "put 400", "TERM"], f"{told}")


@check("async.exception_backs_off", needs=("conf-raise",))
async def exception_backs_off(stage: Stage) -> None:
    """An exception NAKs with 2, 4, 8 s; the key stays at 100."""
    job = await stage.enqueue("conf-raise")
    await stage.until(lambda: len(stage.tap.about(job.seq, "NAK")) >= 3, 20, "three NAKs")
    naks = stage.tap.about(job.seq, "NAK")[:3]
    delays = [nak.delay_ns for nak in naks]
    expect(delays == [2 * _SECOND, 4 * _SECOND, 8 * _SECOND], f"delays {delays}")
    expect([nak.delivery for nak in naks] == [1, 2, 3], "deliveries are not counted")
    gaps = [later.at - earlier.at for earlier, later in pairwise(naks)]
    close = all(abs(gap - wanted) < 1.5 for gap, wanted in zip(gaps, (2.0, 4.0), strict=True))
    expect(close, f"came back after {gaps}")
    statuses = await stage.statuses(job.key)
    expect(set(statuses) == {100}, f"records {statuses}")


@check("async.backoff_is_capped", needs=("conf-raise",), slow=True)
async def backoff_is_capped(stage: Stage) -> None:
    """From the sixth delivery on the delay is 60 s."""
    job = await stage.enqueue("conf-raise")
    await stage.until(lambda: len(stage.tap.about(job.seq, "NAK")) >= 7, 150, "seven NAKs")
    delays = [nak.delay_ns for nak in stage.tap.about(job.seq, "NAK")]
    wanted = [seconds * _SECOND for seconds in (2, 4, 8, 16, 32, 60, 60)]
    expect(delays == wanted, f"delays {delays}")


@check("async.no_record_on_500", needs=("conf-reply-async",))
async def no_record_on_500(stage: Stage) -> None:
    """A status of 500 and above is not recorded; the message is NAKed with 2 s."""
    for status in (500, 503, 599):
        job = await stage.enqueue("conf-reply-async", {"status": status, "error": "later"})
        settled = await stage.settled(job)
        expect((settled.verb, settled.delay_ns) == ("NAK", 2 * _SECOND), f"{status}: {settled}")
        expect(story(stage, job)[:2] == ["put 100", "NAK"], f"{status}: {story(stage, job)}")


@check("async.retry_counts_attempts", needs=("e2e-retry",))
async def retry_counts_attempts(stage: Stage) -> None:
    """A job that fails once is run exactly twice."""
    job = await stage.enqueue("e2e-retry", {"failCount": 1})
    record = await stage.final(job.key, 10)
    expect(record.get("data") == {"attempts": 2}, f"record {record}")
    expect(set((await stage.statuses(job.key))[:-1]) == {100}, "not at 100 while it was retried")


@check("async.bad_json", needs=("conf-untouched",))
async def bad_json(stage: Stage) -> None:
    """Input that is not JSON is TERMed at once and leaves no record."""
    for body in (b"", b'{"runId": "broken"', b'{"runId": "\xff\xfe"}'):
        job = await stage.enqueue("conf-untouched", body)
        settled = await stage.settled(job)
        expect(settled.verb == "TERM", f"{body!r}: {settled.verb} {settled.rest}")
    puts = [put.key for put in stage.tap.puts("conf-untouched.")]
    expect(not puts, f"records {puts}")


@check("async.bad_json_reason", level="strict", needs=("conf-untouched",))
async def bad_json_reason(stage: Stage) -> None:
    """The TERM for bad JSON says so."""
    job = await stage.enqueue("conf-untouched", b"{")
    settled = await stage.settled(job, "TERM")
    expect("Invalid JSON input" in settled.rest, f"reason {settled.rest!r}")


@check("async.bad_run_ids", level="strict", needs=("conf-echo-async",))
async def bad_run_ids(stage: Stage) -> None:
    """A run id that cannot be a key is TERMed with a reason, without run or record."""
    refused = ["a b", ".a", "a.", "a*", "a>", [1]]
    for run_id in refused:
        job = await stage.enqueue("conf-echo-async", {"runId": run_id})
        settled = await stage.settled(job)
        expect(settled.verb == "TERM", f"{run_id!r}: {settled.verb} {settled.rest}")
        expect(settled.rest, f"{run_id!r}: refused without a reason")
    records = [parsed(put.value) for put in stage.tap.puts("conf-echo-async.") if put.value]
    found = [record for record in records if record and record["id"] in refused]
    expect(not found, f"records {found}")


async def _left(stage: Stage, job: Job) -> bool:
    return not await stage.stored(job)


async def _run_of(stage: Stage, task: str, marker: str) -> dict[str, Any]:
    """The final record of the job that carried ``marker``, whatever its run id."""

    def found() -> list[dict[str, Any]]:
        records = [parsed(put.value) for put in stage.tap.puts(f"{task}.") if put.value]
        return [r for r in records if r and r.get("data") == {"marker": marker}]

    await stage.until(lambda: bool(found()), 10, f"a record of {task} with {marker}")
    return found()[0]


@check("async.run_id_is_made", needs=("conf-echo-async",))
async def run_id_is_made(stage: Stage) -> None:
    """Without a run id (or with an empty one) the worker makes a UUIDv7."""
    for given in ({}, {"runId": ""}, {"runId": None}):
        marker = fresh("marker")
        job = await stage.enqueue(
            "conf-echo-async", json.dumps({**given, "marker": marker}).encode()
        )
        run_id = (await _run_of(stage, job.task, marker))["id"]
        expect(isinstance(run_id, str), f"{given}: id {run_id!r}")
        expect(len(run_id) == 36 and run_id[14] == "7", f"{given}: id {run_id!r} is no UUIDv7")
        record = await stage.final(f"{job.task}.{run_id}", 5)
        expect(record["id"] == run_id, f"recorded elsewhere: {record}")


@check("async.run_id_number", needs=("conf-echo-async",))
async def run_id_number(stage: Stage) -> None:
    """A number as run id is the key in decimal."""
    number = int.from_bytes(fresh("n").encode()[-4:], "big")
    await stage.enqueue("conf-echo-async", {"runId": number})
    record = await stage.final(f"conf-echo-async.{number}", 10)
    expect(str(record["id"]) == str(number), f"id {record['id']!r}")


@check("async.run_id_number_as_text", level="strict", needs=("conf-echo-async",))
async def run_id_number_as_text(stage: Stage) -> None:
    """A number as run id is recorded as a text, so that every reader finds one type."""
    number = int.from_bytes(fresh("n").encode()[-4:], "big")
    await stage.enqueue("conf-echo-async", {"runId": number})
    record = await stage.final(f"conf-echo-async.{number}", 10)
    expect(record["id"] == str(number), f"id {record['id']!r}")
