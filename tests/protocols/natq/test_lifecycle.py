"""A worker's whole life on a real server: what it makes, says, and lets finish, in order."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.broker.config import ConsumerConfig, StreamConfig
from penstock.broker.link import Link
from penstock.broker.options import NatsOptions
from penstock.core.context import Context
from penstock.core.errors import ConfigError
from penstock.core.outcome import Done, Reject, Retry, Snooze
from penstock.core.policy import Backoff
from penstock.protocols.natq.client import NatqClient
from penstock.protocols.natq.options import NatqOptions
from penstock.protocols.natq.room import Room
from penstock.protocols.natq.wire import consumer_name
from tests.protocols.natq.conftest import SECOND, Serve, Story, a_task

if TYPE_CHECKING:
    from penstock.broker.embedded import EmbeddedNats

QUICK = Backoff(base=timedelta(milliseconds=10), ceiling=timedelta(milliseconds=10))


# The start --------------------------------------------------------------------------------


async def test_the_start_follows_the_order_of_the_seed(
    serve: Serve, nats_server: EmbeddedNats, options: NatqOptions
) -> None:
    said: list[str] = []
    watching = await Link.open(NatsOptions.from_url(nats_server.url))
    for pattern in ("$JS.API.STREAM.CREATE.*", "$JS.API.CONSUMER.CREATE.>",
                    "$JS.API.CONSUMER.DURABLE.CREATE.>", "$JS.API.CONSUMER.MSG.NEXT.>",
                    f"$KV.{options.tasks_bucket}.>"):  # fmt: skip
        await watching.subscribe(pattern, lambda subject, *_: said.append(subject.decode()))
    await watching.flush()

    async def job() -> None: ...

    await serve(a_task(job, name="ask", reply=True), a_task(job, name="work"))
    async with asyncio.timeout(10):
        while not any("MSG.NEXT" in one for one in said):
            await asyncio.sleep(0.01)
    await watching.close(drain=False)

    own = [one for one in said if options.stream.removesuffix("_jobs") in one]
    steps = [
        f"STREAM.CREATE.KV_{options.tasks_bucket}",
        f"STREAM.CREATE.KV_{options.results_bucket}",
        f"STREAM.CREATE.{options.stream}",
        f"$KV.{options.tasks_bucket}.ask",
        f"$KV.{options.tasks_bucket}.work",
        "natq_worker_work",
        "MSG.NEXT",
    ]
    places = [next(n for n, one in enumerate(own) if step in one) for step in steps]
    assert places == sorted(places), own


async def test_what_is_made_on_the_server_is_what_every_sdk_makes(
    serve: Serve, room: Room, options: NatqOptions
) -> None:
    await serve(a_task())

    stream = (await room.jetstream.stream_info(options.stream)).config
    consumer = (await room.jetstream.consumer_info(options.stream, consumer_name("job"))).config
    results = (await room.jetstream.stream_info(f"KV_{options.results_bucket}")).config

    assert stream.subjects == [f"{options.async_prefix}>"]
    assert (stream.retention, stream.discard, stream.storage) == ("workqueue", "new", "file")
    assert consumer.filter_subject == f"{options.async_prefix}job"
    assert (consumer.ack_policy, consumer.deliver_policy) == ("explicit", "all")
    assert consumer.ack_wait == timedelta(seconds=30)
    assert consumer.max_deliver in (None, -1)  # a limit would strand the jobs of other SDKs
    assert not consumer.backoff  # it would shorten the ack wait to its first step
    assert results.max_msgs_per_subject == 1


async def test_what_others_have_made_is_taken_as_it_is(
    serve: Serve, room: Room, options: NatqOptions, client: NatqClient
) -> None:
    js = room.jetstream
    own = ConsumerConfig(
        durable_name=consumer_name("job"),
        filter_subject=f"{options.async_prefix}job",
        ack_policy="explicit",
        ack_wait=timedelta(seconds=7),
        max_ack_pending=3,
    )
    await js.ensure_consumer(options.stream, own)
    before = (await js.consumer_info(options.stream, consumer_name("job"))).config

    await serve(a_task())
    run = await client.enqueue("job", {"a": 1})

    assert await run.result(10) == {"a": 1}
    assert (await js.consumer_info(options.stream, consumer_name("job"))).config == before


async def test_a_consumer_with_a_limit_of_its_own_is_warned_of(
    serve: Serve, room: Room, options: NatqOptions, caplog: pytest.LogCaptureFixture
) -> None:
    await room.ensure_stream()
    limited = ConsumerConfig(
        durable_name=consumer_name("job"),
        filter_subject=f"{options.async_prefix}job",
        ack_policy="explicit",
        max_deliver=5,
    )
    await room.jetstream.ensure_consumer(options.stream, limited)

    await serve(a_task())

    assert "natq_worker_job gives up after 5 deliveries" in caplog.text


async def test_a_worker_with_requests_only_makes_no_stream(
    serve: Serve, room: Room, options: NatqOptions
) -> None:
    await serve(a_task(reply=True))

    assert options.stream not in await room.jetstream.stream_names()


async def test_a_task_that_cannot_be_served_on_natq_is_refused_before_anything_is_made(
    serve: Serve, link: Link, options: NatqOptions, room: Room
) -> None:
    with pytest.raises(ConfigError, match=r"'re\.size' cannot be used on natq"):
        await serve(a_task(names={"natq": "re.size"}))

    assert await room.tasks.keys() == []


async def test_a_bucket_of_an_older_sdk_without_ttl_serves_as_well(
    serve: Serve, link: Link, options: NatqOptions, story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    """As nats-py 2.12 makes it: no per-message TTL, no direct reads; a drop leaves its marker."""
    older = msgspec.structs.replace(
        options, results_bucket=options.results_bucket + "_old", result_ttl=timedelta(hours=1)
    )
    told = Story(older)
    await told.listen(link)
    js = (await Room.open(link, options)).jetstream
    await js.ensure_stream(
        StreamConfig(
            name=f"KV_{older.results_bucket}",
            subjects=[f"$KV.{older.results_bucket}.>"],
            max_msgs_per_subject=1,
            deny_delete=True,
            allow_rollup_hdrs=True,
            discard="new",
        )
    )
    with caplog.at_level(logging.WARNING, "penstock.natq"):
        await serve(a_task(), options=older)
    client = await NatqClient.open(link, older)
    kept = await client.enqueue("job", {"a": 1})
    assert await kept.result(10) == {"a": 1}
    await client.enqueue("job", {"a": 2}, drop_result=True)

    assert "gone" in await told.until("gone")
    assert "made without times to live" in caplog.text


# Jobs -------------------------------------------------------------------------------------


async def said(what: str, n: int = 0) -> Any:
    match what:
        case "created":
            return Done({"n": 1}, status=201)
        case "reject":
            raise Reject("bad\r\naddress", status=422)
        case "boom":
            raise RuntimeError("boom")
        case "retry":
            raise Retry("later", after=7)
        case "snooze":
            raise Snooze(3600)
        case "object":
            return object()
        case _:
            return None


@pytest.mark.parametrize(("what", "told"), [
    ("created", ["put 100", "put 201", "ACK"]),
    ("nothing", ["put 100", "put 200", "ACK"]),
    ("reject", ["put 100", "put 422", "TERM bad address"]),
    ("boom", ["put 100", "NAK 2"]),
    ("retry", ["put 100", "NAK 7"]),
    ("object", ["put 100", "put 500", "TERM the result is not JSON: a object is not JSON"]),
])  # fmt: skip
async def test_every_outcome_is_said_in_its_order(
    serve: Serve, client: NatqClient, story: Story, what: str, told: list[str]
) -> None:
    await serve(a_task(said))
    await client.enqueue("job", {"what": what})

    assert await story.until(told[-1]) == told


def cannot_leave_its_process() -> Any:
    return lambda: None


@pytest.mark.parametrize("cpu", [True, False])
async def test_a_result_of_a_plain_function_that_is_no_data_ends_the_job_too(
    serve: Serve, client: NatqClient, story: Story, cpu: bool
) -> None:
    await serve(a_task(cannot_leave_its_process, cpu=cpu))
    run = await client.enqueue("job")

    assert (await story.until("TERM"))[:2] == ["put 100", "put 500"]
    assert "the result " in str((await client.output("job", run.run_id, 5)).error)


async def test_a_snooze_takes_its_attempt_back_before_it_lets_go(
    serve: Serve, client: NatqClient, story: Story
) -> None:
    await serve(a_task(said))
    run = await client.enqueue("job", {"what": "snooze"})

    assert await story.until("NAK") == ["put 100", "put 100", "NAK 3600"]
    record = await run.status()
    assert record is not None
    assert record.attempt == 0


async def test_input_that_does_not_fit_ends_as_400_with_the_field(
    serve: Serve, client: NatqClient, story: Story
) -> None:
    await serve(a_task(said))
    run = await client.enqueue("job", {"what": "nothing", "n": "many"})

    assert (await story.until("TERM"))[:2] == ["put 100", "put 400"]
    output = await client.output("job", run.run_id, 5)
    assert "at $.n" in str(output.error)


@pytest.mark.parametrize("payload", [b"", b"{", b"\xff", b'{"runId":"a b"}'])
async def test_input_that_cannot_be_read_is_terminated_with_a_reason_and_never_run(
    serve: Serve, client: NatqClient, story: Story, options: NatqOptions, payload: bytes
) -> None:
    ran: list[dict[str, Any]] = []

    async def job(**fields: Any) -> None:
        ran.append(fields)

    await serve(a_task(job))
    await client.room.publisher.publish(f"{options.async_prefix}job".encode(), payload)

    (term,) = await story.until("TERM ")
    assert "Invalid JSON input" in term or "runId 'a b'" in term
    assert not ran


async def test_failures_back_off_by_two_to_the_n_until_it_succeeds(
    serve: Serve, client: NatqClient, story: Story
) -> None:
    ran = 0

    async def job() -> int:
        nonlocal ran
        ran += 1
        if ran < 3:
            raise RuntimeError("not yet")
        return ran

    await serve(a_task(job))
    run = await client.enqueue("job")

    assert await run.result(20) == 3
    told = await story.until("ACK")
    assert [word for word in told if word[:3] == "NAK"] == ["NAK 2", "NAK 4"]
    assert [word for word in told if word[:3] == "put"] == [*["put 100"] * 3, "put 200"]


async def test_a_task_s_own_backoff_is_kept(serve: Serve, client: NatqClient, story: Story) -> None:
    async def job() -> None:
        raise RuntimeError("always")

    await serve(a_task(job, backoff=QUICK, retries=2))
    run = await client.enqueue("job")

    assert (await client.output("job", run.run_id, 20)).status == 500
    told = await story.until("TERM")
    assert [word for word in told if word[:3] == "NAK"] == ["NAK 0.01", "NAK 0.01"]


async def test_a_job_that_takes_long_is_kept_by_heartbeats(
    serve: Serve, client: NatqClient, options: NatqOptions, room: Room, link: Link, story: Story
) -> None:
    released = asyncio.Event()

    async def job() -> str:
        await released.wait()
        return "kept"

    own = ConsumerConfig(
        durable_name=consumer_name("job"),
        filter_subject=f"{options.async_prefix}job",
        ack_policy="explicit",
        ack_wait=timedelta(seconds=3),
    )
    await room.ensure_stream()
    await room.jetstream.ensure_consumer(options.stream, own)
    await serve(a_task(job))
    await serve(a_task(job))
    run = await client.enqueue("job")
    async with asyncio.timeout(20):
        while story.words.count("WPI") < 5:  # longer than the ack wait
            await asyncio.sleep(0.05)
    released.set()

    assert await run.result(10) == "kept"
    told = [word for word in await story.until("ACK") if word != "WPI"]
    assert told == ["put 100", "put 200", "ACK"]  # never delivered to the other one


async def test_jobs_run_side_by_side_but_never_more_than_there_are_slots(
    serve: Serve, client: NatqClient, room: Room, options: NatqOptions
) -> None:
    running = most = 0
    full = asyncio.Event()
    released = asyncio.Event()

    async def job() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 4:
            full.set()
        await released.wait()
        running -= 1

    await serve(a_task(job), concurrency=4)
    runs = [await client.enqueue("job") for _ in range(12)]
    await asyncio.wait_for(full.wait(), 20)
    info = await room.jetstream.consumer_info(options.stream, consumer_name("job"))
    released.set()
    await client.results(runs, timeout=20)

    assert most == 4
    assert info.num_ack_pending == 4  # nothing is held that could not start


# The end ----------------------------------------------------------------------------------


async def test_a_drain_lets_jobs_finish_and_takes_no_more(serve: Serve, client: NatqClient) -> None:
    started, released = asyncio.Event(), asyncio.Event()

    async def job() -> str:
        started.set()
        await released.wait()
        return "finished"

    serving = await serve(a_task(job), concurrency=1)
    first, second = await client.enqueue("job"), await client.enqueue("job")
    await asyncio.wait_for(started.wait(), 10)
    stopping = asyncio.create_task(serving.stop(10 * SECOND))
    await asyncio.sleep(0)
    released.set()
    await stopping

    assert await first.result(5) == "finished"
    assert await second.status() is None


async def test_a_job_that_outlives_the_grace_is_given_back_at_once_without_costing_an_attempt(
    serve: Serve, client: NatqClient, story: Story
) -> None:
    attempts: list[int] = []
    started = asyncio.Event()

    async def job(ctx: Context) -> str:
        attempts.append(ctx.attempt)
        started.set()
        if len(attempts) == 1:
            await asyncio.Event().wait()
        return "second worker"

    serving = await serve(a_task(job))
    run = await client.enqueue("job")
    await asyncio.wait_for(started.wait(), 10)
    await serving.stop(0 * SECOND)
    await serve(a_task(job))

    assert await run.result(10) == "second worker"
    assert attempts == [1, 1]
    told = await story.until("ACK")
    assert told == ["put 100", "put 100", "NAK 0", "put 100", "put 200", "ACK"]


# The log ----------------------------------------------------------------------------------


async def test_every_line_about_a_job_names_worker_task_and_run(
    serve: Serve, client: NatqClient, story: Story, options: NatqOptions,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    with caplog.at_level(logging.INFO, "penstock"):
        serving = await serve(a_task(said))
        for what in ("boom", "object", "reject"):
            await client.enqueue("job", {"what": what}, run_id=what)
        await story.until("NAK", "TERM bad", "TERM the result")
        subject = f"{options.async_prefix}job".encode()
        await client.room.publisher.publish(subject, b'{"runId":"reject"}')  # a duplicate
        await client.room.publisher.publish(subject, b"{")
        await story.until("TERM Invalid", "TERM ended before")

    about = [line for line in caplog.records if line.name.startswith("penstock")]
    assert {getattr(line, "workerId", None) for line in about} == {serving.worker.id}
    runs = [line for line in about if hasattr(line, "runId")]
    assert {line.runId for line in runs} == {"boom", "object", "reject"}  # type: ignore[attr-defined]
    assert {line.taskId for line in runs} == {"job"}  # type: ignore[attr-defined]
    (refused,) = [line for line in about if "Invalid JSON" in line.getMessage()]
    assert refused.taskId == "job"  # type: ignore[attr-defined]
