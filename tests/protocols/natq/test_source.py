"""Jobs through the port, on a real server: every record and ack in its order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.broker.config import StreamConfig
from penstock.core.delivery import Gone, Settled, SettledKind
from penstock.core.outcome import (
    Continued,
    Done,
    Interrupted,
    Lost,
    Reject,
    Retry,
    Snoozed,
    outcome_of_error,
)
from penstock.protocols.natq.client import NatqClient
from penstock.protocols.natq.dead import dead_letters, replay
from penstock.protocols.natq.options import NatqOptions
from penstock.protocols.natq.room import Room
from penstock.protocols.natq.wire import decode_output
from penstock.protocols.natq.worker import JobSource
from tests.protocols.natq.conftest import SECOND, a_task

if TYPE_CHECKING:
    from penstock.broker.link import Link

Maker = Callable[..., Any]
SOON = Retry("soon", after=0.001)


async def one_of(source: JobSource, wait: timedelta = 5 * SECOND) -> Any:
    (job,) = await source.take(1, wait)
    return job


async def emptied(room: Room) -> None:
    """The stream holds nothing any more, or soon will: an ack is not answered."""
    async with asyncio.timeout(10):
        while await pending(room):
            await asyncio.sleep(0.01)


async def pending(room: Room) -> int:
    """Messages still in the stream."""
    await room.link.flush()
    return (await room.jetstream.stream_info(room.options.stream)).state.messages


async def test_a_job_runs_from_100_to_200_and_leaves_the_stream(
    client: NatqClient, make_source: Maker
) -> None:
    source = await make_source()
    run = await client.enqueue("job", {"a": 1})

    job = await one_of(source)
    begun = await run.status()
    settled = await job.settle(Done({"b": 2}))

    assert begun is not None
    assert begun.status == 100
    assert job.invocation.body == {"a": 1}
    assert job.invocation.work_id == run.run_id
    assert settled.kind is SettledKind.SUCCEEDED
    assert await run.result(timeout=5) == {"b": 2}
    await emptied(client.room)


async def test_a_watcher_sees_100_then_200_and_nothing_else(
    client: NatqClient, make_source: Maker
) -> None:
    source = await make_source()
    seen: list[int] = []

    async def follow() -> None:
        async with await client.room.results.watch(">", updates_only=True) as watch:
            following.set()
            async for entry in watch:
                seen.append(decode_output(entry.value).status)
                if seen[-1] != 100:
                    return

    following = asyncio.Event()
    watcher = asyncio.create_task(follow())
    await following.wait()
    await client.enqueue("job", {}, run_id="r")
    job = await one_of(source)
    while not seen:
        await asyncio.sleep(0)
    await job.settle(Done(1))
    await asyncio.wait_for(watcher, 5)

    assert seen == [100, 200]


async def test_a_failed_job_comes_back_as_the_second_attempt(
    client: NatqClient, make_source: Maker
) -> None:
    source = await make_source()
    run = await client.enqueue("job")
    first = await one_of(source)

    settled = await first.settle(outcome_of_error(SOON))
    second = await one_of(source)

    assert settled.kind is SettledKind.RETRYING
    assert (first.invocation.attempt, first.invocation.delivery) == (1, 1)
    assert (second.invocation.attempt, second.invocation.delivery) == (2, 2)
    assert (await run.status()).status == 100
    await second.settle(Done())


async def test_an_interrupted_job_comes_back_at_once_and_has_lost_no_attempt(
    client: NatqClient, make_source: Maker
) -> None:
    source = await make_source()
    await client.enqueue("job")

    settled = await (await one_of(source)).settle(Interrupted())
    again = await one_of(source)

    assert settled.kind is SettledKind.RETURNED
    assert (again.invocation.attempt, again.invocation.delivery) == (1, 2)
    await again.settle(Done())


async def test_a_snoozed_job_brings_its_checkpoint_back(
    client: NatqClient, make_source: Maker
) -> None:
    source = await make_source()
    await client.enqueue("job")

    await (await one_of(source)).settle(Snoozed(timedelta(0), {"page": 3}))
    again = await one_of(source)

    assert again.invocation.attempt == 1
    assert again.invocation.checkpoint.value == {"page": 3}
    assert again.invocation.iteration == 0
    await again.settle(Done())


async def test_a_continued_job_counts_iterations_and_forgets_its_checkpoint_at_the_end(
    client: NatqClient, make_source: Maker
) -> None:
    source = await make_source()
    run = await client.enqueue("job")

    for turn in range(3):
        job = await one_of(source)
        assert job.invocation.iteration == turn
        await job.settle(Continued(turn))
    job = await one_of(source)
    assert job.invocation.checkpoint.value == 2
    await job.settle(Done("end"))

    assert await run.result(5) == "end"
    assert await source.checkpoints.load("job", run.run_id) is None


async def test_a_saved_checkpoint_survives_a_failure(
    client: NatqClient, make_source: Maker
) -> None:
    source = await make_source()
    await client.enqueue("job")
    first = await one_of(source)

    await first.save({"row": 7})
    await first.settle(outcome_of_error(SOON))

    again = await one_of(source)
    assert again.invocation.checkpoint.value == {"row": 7}
    await again.settle(Done())


async def test_a_rejected_job_ends_with_its_error(client: NatqClient, make_source: Maker) -> None:
    source = await make_source()
    run = await client.enqueue("job")

    settled = await (await one_of(source)).settle(outcome_of_error(Reject("bad", status=422)))

    assert settled.kind is SettledKind.PARKED
    output = await client.output("job", run.run_id, 5)
    assert (output.status, output.error) == (422, "bad")
    await emptied(client.room)


@pytest.mark.parametrize("payload", [b"", b"{", b"\xff", b'{"runId":"a b"}', b'{"runId":[1]}'])
async def test_an_input_that_can_never_run_is_terminated_without_a_record(
    client: NatqClient, make_source: Maker, link: Link, options: NatqOptions, payload: bytes
) -> None:
    source = await make_source()
    await client.room.publisher.publish(f"{options.async_prefix}job".encode(), payload)

    assert await source.take(1, 2 * SECOND) == []

    await emptied(client.room)
    assert await client.room.results.keys() == []


async def test_a_job_without_run_id_keeps_the_one_it_was_given_over_all_deliveries(
    client: NatqClient, make_source: Maker, options: NatqOptions
) -> None:
    source = await make_source()
    await client.room.publisher.publish(f"{options.async_prefix}job".encode(), b"{}")

    first = await one_of(source)
    await first.settle(outcome_of_error(SOON))
    second = await one_of(source)

    assert first.invocation.work_id == second.invocation.work_id
    await second.settle(Done())


async def test_a_dropped_result_is_seen_once_and_leaves_nothing_behind(
    client: NatqClient, make_source: Maker
) -> None:
    source = await make_source()
    run = await client.enqueue("job", {}, drop_result=True)

    await (await one_of(source)).settle(Done({"x": 1}))

    assert await run.status() is None
    assert await client.output("job", run.run_id, 5) is not None


async def test_a_final_record_ends_a_redelivery_without_running(
    client: NatqClient, make_source: Maker
) -> None:
    source = await make_source()
    run = await client.enqueue("job")
    job = await one_of(source)
    final = b'{"id":"%b","taskId":"job","status":200}' % run.run_id.encode()
    await source.records.finish(run.run_id, final, revision=None, seq=1, attempt=1)
    job._message.nak(0)  # as if the ack had been lost

    assert await source.take(1, SECOND) == []
    await emptied(client.room)


async def test_the_same_run_id_twice_is_one_job(client: NatqClient, make_source: Maker) -> None:
    source = await make_source()
    first = await client.enqueue("job", run_id="r-1")
    second = await client.enqueue("job", run_id="r-1")

    assert (first.duplicate, second.duplicate) == (False, True)
    await (await one_of(source)).settle(Done())


async def test_a_second_message_under_a_finished_run_id_is_acked_without_running(
    client: NatqClient, make_source: Maker, options: NatqOptions
) -> None:
    source = await make_source()
    await client.enqueue("job", run_id="r-1")
    await (await one_of(source)).settle(Done("first"))

    subject = f"{options.async_prefix}job".encode()
    await client.room.publisher.publish(subject, b'{"runId":"r-1"}')

    assert await source.take(1, SECOND) == []
    await emptied(client.room)
    assert await client.result("job", "r-1", 5) == "first"


async def test_an_orphaned_record_does_not_swallow_the_next_job_of_its_run_id(
    client: NatqClient, make_source: Maker, options: NatqOptions
) -> None:
    source = await make_source()
    await client.enqueue("job", run_id="r-1")
    await one_of(source)
    await client.room.jetstream.purge(options.stream)  # the job is gone, its record is not

    subject = f"{options.async_prefix}job".encode()
    await client.room.publisher.publish(subject, b'{"runId":"r-1"}')
    job = await one_of(source)
    await job.settle(Done("ran"))

    assert await client.result("job", "r-1", 5) == "ran"


async def test_a_worker_that_was_overtaken_writes_nothing_and_is_told(
    client: NatqClient, make_source: Maker
) -> None:
    slow_source, quick_source = await make_source(), await make_source(worker_id="w-2")
    run = await client.enqueue("job")
    slow = await one_of(slow_source)
    slow._message.nak(0)  # the server hands it to another, as after ack_wait
    slow._message = type(slow._message)(
        slow._message._link, b"x", slow._message.reply, None, slow._message.payload
    )

    quick = await one_of(quick_source)
    late = await slow.settle(Done("late"))
    settled = await quick.settle(Done("right"))

    assert isinstance(late, Gone)
    assert isinstance(settled, Settled)
    assert await run.result(5) == "right"


async def test_a_lost_job_touches_nothing(client: NatqClient, make_source: Maker) -> None:
    source = await make_source()
    run = await client.enqueue("job")
    job = await one_of(source)

    assert isinstance(await job.settle(Lost()), Gone)

    assert (await run.status()).status == 100
    assert await pending(client.room) == 1


async def test_a_result_too_large_for_a_message_ends_as_413(
    client: NatqClient, make_source: Maker
) -> None:
    source = await make_source()
    run = await client.enqueue("job")

    settled = await (await one_of(source)).settle(Done("x" * 2_000_000))

    assert settled.kind is SettledKind.PARKED
    output = await client.output("job", run.run_id, 5)
    assert output.status == 413
    assert "over the limit" in str(output.error)


async def test_a_large_result_that_finds_no_place_brings_the_job_back_later(
    link: Link, options: NatqOptions
) -> None:
    roomy = msgspec.structs.replace(options, large_results=True)
    room = await Room.open(link, roomy)
    store = StreamConfig(
        name=f"OBJ_{roomy.large_bucket}",
        subjects=[f"$O.{roomy.large_bucket}.>"],
        max_bytes=1000,
        discard="new",
        allow_rollup_hdrs=True,
    )
    await room.jetstream.ensure_stream(store)
    source = JobSource(room, a_task(), "w-1")
    await source.bind()
    client = NatqClient(room)
    run = await client.enqueue("job")

    settled = await (await one_of(source)).settle(Done("x" * 2_000_000))

    assert settled.kind is SettledKind.RETRYING
    assert (await run.status()).status == 100
    assert await pending(room) == 1
    await source.stop()


async def test_a_job_out_of_attempts_is_a_dead_letter_that_can_live_again(
    room: Room, client: NatqClient, make_source: Maker
) -> None:
    await room.ensure_dead_letters()
    source = await make_source(retries=1)
    run = await client.enqueue("job", {"a": 1})
    await (await one_of(source)).settle(outcome_of_error(SOON))
    await (await one_of(source)).settle(outcome_of_error(RuntimeError("still broken")))

    (letter,) = [one async for one in dead_letters(room)]
    assert (letter.run_id, letter.attempts, letter.status) == (run.run_id, 2, 500)
    assert letter.error == "Unhandled exception: still broken"
    assert (await client.output("job", run.run_id, 5)).status == 500

    await replay(room, letter)
    again = await one_of(source)
    assert again.invocation.attempt == 1
    await again.settle(Done("alive"))
    assert await run.result(5) == "alive"
    assert [one async for one in dead_letters(room)] == []


async def test_a_job_that_kills_its_worker_every_time_is_buried_unrun(
    room: Room, client: NatqClient, make_source: Maker
) -> None:
    await room.ensure_dead_letters()
    source = await make_source(retries=0)
    run = await client.enqueue("job")
    (await one_of(source))._message.nak(0)  # the worker died with it, and said nothing

    assert await source.take(1, SECOND) == []

    output = await client.output("job", run.run_id, 5)
    assert output.status == 500
    assert "gave up after 1 attempts" in str(output.error)
    assert len([one async for one in dead_letters(room)]) == 1


async def test_a_deleted_consumer_is_made_again(client: NatqClient, make_source: Maker) -> None:
    from penstock.core.delivery import SourceLost

    source = await make_source()
    await client.room.jetstream.delete_consumer(client.room.options.stream, "natq_worker_job")
    await client.enqueue("job")

    for _ in range(5):
        try:
            jobs = await source.take(1, SECOND)
        except SourceLost:
            continue
        if jobs:
            break
    assert len(jobs) == 1
    await jobs[0].settle(Done())
