"""Results that are unusual: too large, kept elsewhere, expiring, dropped, or not as announced."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.broker.config import StreamConfig
from penstock.core import codec
from penstock.core.errors import BadInput
from penstock.protocols.natq.admin import NatqAdmin
from penstock.protocols.natq.client import Job, NatqClient
from penstock.protocols.natq.options import NatqOptions
from penstock.protocols.natq.results import REFERENCE, ResultMissing
from penstock.protocols.natq.room import Room
from penstock.protocols.natq.wire import TaskDefinition, TaskType
from tests.protocols.natq.conftest import Serve, Story, a_task

if TYPE_CHECKING:
    from penstock.broker.link import Link

LARGE = 2_000_000


def with_(options: NatqOptions, **more: Any) -> NatqOptions:
    return msgspec.structs.replace(options, **more)


async def big(bytes: int = LARGE) -> str:
    return "x" * bytes


async def objects(room: Room) -> list[str]:
    """The names of the objects that the store of large results holds."""
    store = f"OBJ_{room.options.large_bucket}"
    subjects = await room.jetstream.subject_counts(store, f"$O.{room.options.large_bucket}.M.>")
    names = [b64decode(subject.rpartition(".")[2], b"-_").decode() for subject in subjects]
    large = await room.large_results()
    return [name for name in names if await large.info(name) is not None]


# Large results ----------------------------------------------------------------------------


@pytest.fixture
def large(options: NatqOptions) -> NatqOptions:
    return with_(options, large_results=True)


async def test_a_large_result_is_kept_in_the_object_store_and_read_back(
    serve: Serve, link: Link, large: NatqOptions, story: Story
) -> None:
    await serve(a_task(big), options=large)
    client = await NatqClient.open(link, large)
    run = await client.enqueue("job")

    assert await run.result(20) == "x" * LARGE
    record = await client.room.results.get(f"job.{run.run_id}")
    assert record is not None
    reference = codec.decode(record.value)["data"]
    assert reference[REFERENCE].startswith(f"job.{run.run_id}@")
    assert reference["bytes"] == LARGE + 2
    assert await story.until("ACK") == ["put 100", "put 200", "ACK"]


async def test_any_client_of_ours_resolves_a_reference_without_the_option(
    serve: Serve, client: NatqClient, large: NatqOptions
) -> None:
    await serve(a_task(big), options=large)
    run = await client.enqueue("job")

    assert await run.result(20) == "x" * LARGE
    (output,) = (await client.results([run], timeout=10)).values()
    assert output.data == "x" * LARGE


async def test_a_dropped_large_result_leaves_no_object_behind(
    serve: Serve, link: Link, large: NatqOptions, story: Story
) -> None:
    await serve(a_task(big), options=large)
    client = await NatqClient.open(link, large)
    await client.enqueue("job", drop_result=True)

    await story.until("gone")
    async with asyncio.timeout(10):
        while await objects(client.room):
            await asyncio.sleep(0.01)


async def test_removing_a_record_removes_its_object_too(
    serve: Serve, link: Link, large: NatqOptions
) -> None:
    await serve(a_task(big), options=large)
    client = await NatqClient.open(link, large)
    run = await client.enqueue("job")
    await run.result(20)

    done = await NatqAdmin(client.room).act("rm", "job", [run.run_id, "unknown"])

    assert (done.changed, done.refused) == (1, ("unknown",))
    assert await run.status() is None
    assert await objects(client.room) == []


async def test_an_object_that_somebody_deleted_is_a_typed_error(
    serve: Serve, link: Link, large: NatqOptions
) -> None:
    await serve(a_task(big), options=large)
    client = await NatqClient.open(link, large)
    run = await client.enqueue("job")
    await run.result(20)
    (name,) = await objects(client.room)
    await (await client.room.large_results()).delete(name)

    with pytest.raises(ResultMissing, match="is not there"):
        await run.result(5)


async def test_data_that_only_looks_like_a_reference_is_data(
    serve: Serve, client: NatqClient
) -> None:
    alike = {REFERENCE: "job.other", "bytes": 1, "sha256": "00"}

    async def job() -> dict[str, Any]:
        return alike

    await serve(a_task(job))

    assert await (await client.enqueue("job")).result(10) == alike


async def test_large_results_live_no_longer_than_their_records(
    serve: Serve, link: Link, large: NatqOptions
) -> None:
    lasting = with_(large, result_ttl=timedelta(hours=2))
    await serve(a_task(big), options=lasting)
    client = await NatqClient.open(link, lasting)
    await (await client.enqueue("job")).result(20)

    info = await client.room.jetstream.stream_info(f"OBJ_{large.large_bucket}")
    assert info.config.max_age == timedelta(hours=2)


# Limits -----------------------------------------------------------------------------------


async def test_a_result_over_the_server_s_limit_ends_as_a_small_413(
    serve: Serve, client: NatqClient, story: Story
) -> None:
    await serve(a_task(big))
    run = await client.enqueue("job")

    assert (await story.until("TERM"))[:2] == ["put 100", "put 413"]
    output = await client.output("job", run.run_id, 5)
    assert output.data is msgspec.UNSET
    assert "bytes, over the limit of" in str(output.error)


@pytest.mark.parametrize("known", [True, False])
async def test_a_result_over_the_bucket_s_own_limit_ends_as_413_too(
    serve: Serve, link: Link, options: NatqOptions, story: Story, known: bool
) -> None:
    """The limit may have been there before the worker, or be set while it runs."""
    room = await Room.open(link, with_(options, results_bucket=f"{options.results_bucket}_x"))
    js = room.jetstream
    bucket = StreamConfig(
        name=f"KV_{options.results_bucket}",
        subjects=[f"$KV.{options.results_bucket}.>"],
        max_msgs_per_subject=1,
        max_msg_size=2_000,
        allow_rollup_hdrs=True,
        discard="new",
    )
    if known:
        await js.ensure_stream(bucket)
    await serve(a_task(big))
    client = await NatqClient.open(link, options)
    if not known:
        made = (await js.stream_info(bucket.name)).config
        await js.ensure_stream(msgspec.structs.replace(made, max_msg_size=2_000), update=True)
    run = await client.enqueue("job", {"bytes": 10_000})
    small = await client.enqueue("job", {"bytes": 100})

    assert (await client.output("job", run.run_id, 20)).status == 413
    assert await small.result(10) == "x" * 100


# Time to live -----------------------------------------------------------------------------


async def test_a_result_goes_when_its_time_is_over(
    serve: Serve, link: Link, options: NatqOptions
) -> None:
    brief = with_(options, result_ttl=timedelta(seconds=1))
    await serve(a_task(), options=brief)
    client = await NatqClient.open(link, brief)
    run = await client.enqueue("job", {"a": 1})

    assert await run.result(10) == {"a": 1}
    async with asyncio.timeout(20):
        while await run.status() is not None:
            await asyncio.sleep(0.05)


# Dropping ---------------------------------------------------------------------------------


async def test_a_dropped_result_is_recorded_acked_and_only_then_deleted(
    serve: Serve, client: NatqClient, story: Story
) -> None:
    await serve(a_task())
    await client.enqueue("job", {"a": 1}, drop_result=True)

    assert await story.until("gone") == ["put 100", "put 200", "ACK", "gone"]


async def test_a_failure_is_kept_although_its_result_was_to_be_dropped(
    serve: Serve, client: NatqClient, story: Story
) -> None:
    async def job(n: int) -> int:
        return n

    await serve(a_task(job))
    run = await client.enqueue("job", {"n": "x"}, drop_result=True)

    assert await story.until("TERM")
    assert (await client.output("job", run.run_id, 5)).status == 400
    assert "gone" not in story.words


async def test_nothing_is_left_of_many_dropped_results_but_markers_that_expire(
    serve: Serve, client: NatqClient, story: Story, options: NatqOptions
) -> None:
    """A plain delete leaves one message in the bucket for ever; ours are gone in minutes."""
    await serve(a_task())
    await client.enqueue_many(Job("job", {"n": n}, drop_result=True) for n in range(30))
    async with asyncio.timeout(20):
        while story.words.count("gone") < 30:
            await asyncio.sleep(0.01)

    assert await client.room.results.keys() == []
    stream = f"KV_{options.results_bucket}"
    subject = f"$KV.{options.results_bucket}.>"
    marker = await client.room.jetstream.get_message(stream, 1, next_by_subj=subject)
    assert marker is not None
    assert b"KV-Operation: DEL" in (marker.headers or b"")
    assert b"Nats-TTL: 300s" in (marker.headers or b"")


# Schemas ----------------------------------------------------------------------------------


@pytest.fixture
def strict(options: NatqOptions) -> NatqOptions:
    return with_(options, enforce_schemas=True)


async def double(width: int) -> int:
    return width * 2


async def test_a_producer_is_told_of_an_unfit_input_before_it_is_sent(
    serve: Serve, link: Link, strict: NatqOptions
) -> None:
    await serve(a_task(double, name="jobs"), a_task(double, name="ask", reply=True))
    client = await NatqClient.open(link, strict)

    with pytest.raises(BadInput) as job:
        await client.enqueue("jobs", {"width": "wide"})
    with pytest.raises(BadInput) as request:
        await client.call("ask", {"width": None})
    bulk = await client.enqueue_many([Job("jobs", {"width": 1}), Job("jobs", {"width": []})])

    assert (job.value.path, request.value.path) == ("$.width", "$.width")
    assert (bulk.stored, bulk.refused) == (1, 1)
    assert "$.width" in str(bulk.failures[0].result)
    assert await client.call("ask", {"width": 4, "runId": "r"}) == 8


async def test_a_newly_announced_schema_is_used_before_anything_is_refused(
    link: Link, strict: NatqOptions
) -> None:
    client = await NatqClient.open(link, strict)

    async def announce(kind: str) -> None:
        schema = f'{{"type":"object","properties":{{"width":{{"type":"{kind}"}}}}}}'
        definition = TaskDefinition("resize", TaskType.ASYNC, input_schema=schema)
        await client.room.tasks.put("resize", codec.encode(definition))

    await announce("integer")
    await client.enqueue("resize", {"width": 3})
    await announce("string")  # a deploy

    assert (await client.enqueue("resize", {"width": "3em"})).run_id
    with pytest.raises(BadInput):
        await client.enqueue("resize", {"width": 3})


async def test_an_announced_schema_that_is_none_is_not_enforced(
    link: Link, strict: NatqOptions, caplog: pytest.LogCaptureFixture
) -> None:
    client = await NatqClient.open(link, strict)
    definition = TaskDefinition("odd", TaskType.ASYNC, input_schema='{"type": 7}')
    await client.room.tasks.put("odd", codec.encode(definition))

    await client.enqueue("odd", {"anything": True})

    assert "the input schema of 'odd' is not enforced" in caplog.text


async def test_a_result_that_is_not_as_announced_ends_the_job_as_500(
    serve: Serve, link: Link, strict: NatqOptions, story: Story
) -> None:
    async def job() -> int:
        return "seven"  # type: ignore[return-value]

    await serve(a_task(job), a_task(job, name="ask", reply=True), options=strict)
    client = await NatqClient.open(link, strict)
    run = await client.enqueue("job")
    answer = await client.ask("ask")

    assert (await story.until("TERM"))[:2] == ["put 100", "put 500"]
    output = await client.output("job", run.run_id, 5)
    assert "the result of 'job' does not fit its schema" in str(output.error)
    assert (answer.status, answer.value) == (500, None)
    assert "does not fit its schema" in answer.error
