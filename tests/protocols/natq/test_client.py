"""The producer's side on a real server: asking, enqueueing, waiting, and being told why not."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from penstock.app import App, Client
from penstock.broker.errors import PayloadTooLarge
from penstock.broker.publisher import Stored
from penstock.core import codec
from penstock.core.errors import BadInput, ConfigError, TaskFailed, UnknownName, Waited
from penstock.core.outcome import Done, Reject
from penstock.protocols.natq.client import Job, NatqClient, NotEnqueued, NoWorker
from penstock.protocols.natq.options import NatqOptions
from penstock.protocols.natq.results import ResultUnreadable
from penstock.protocols.natq.wire import BadRunId, TaskDefinition, TaskType
from penstock.settings import Settings
from tests.protocols.natq.conftest import Serve, a_task

if TYPE_CHECKING:
    from penstock.broker.link import Link


async def add(a: int, b: int) -> dict[str, int]:
    return {"sum": a + b}


async def refuse() -> None:
    raise Reject("not today", status=409, data={"until": "monday"})


async def resize(width: int = 800) -> int:
    return width


ADD = a_task(add, name="add", reply=True)
REFUSE = a_task(refuse, name="refuse", reply=True)
RESIZE = a_task(resize, name="resize")


async def announce(client: NatqClient, **members: Any) -> None:
    definition = TaskDefinition(**members)
    stored = await client.room.tasks.put(definition.id, codec.encode(definition))
    assert isinstance(stored, Stored)


# Asking -----------------------------------------------------------------------------------


async def test_a_call_returns_what_the_task_returned(client: NatqClient, serve: Serve) -> None:
    await serve(ADD)

    assert await client.call("add", {"a": 5, "b": 3}) == {"sum": 8}


async def test_a_task_that_refuses_raises_with_status_error_and_data(
    client: NatqClient, serve: Serve
) -> None:
    await serve(REFUSE)

    with pytest.raises(TaskFailed, match="refuse answered 409: not today") as caught:
        await client.call("refuse")

    assert (caught.value.status, caught.value.data) == (409, {"until": "monday"})


async def test_ask_gives_the_whole_answer_and_raises_nothing(
    client: NatqClient, serve: Serve
) -> None:
    await serve(REFUSE)

    answer = await client.ask("refuse")

    assert (answer.status, answer.ok, answer.error) == (409, False, "not today")


async def test_a_status_of_its_own_and_no_data_come_through(
    client: NatqClient, serve: Serve
) -> None:
    async def accept() -> Done:
        return Done(None, status=202)

    await serve(a_task(accept, name="accept", reply=True))

    answer = await client.ask("accept")

    assert (answer.status, answer.value, answer.ok) == (202, None, True)


async def test_a_task_nobody_announced_names_the_nearest(client: NatqClient, serve: Serve) -> None:
    await serve(ADD)

    with pytest.raises(UnknownName, match="did you mean 'add'"):
        await client.call("ad")


async def test_a_known_task_without_workers_says_so(client: NatqClient, serve: Serve) -> None:
    await (await serve(ADD)).stop()

    with pytest.raises(NoWorker, match="no worker serves 'add'"):
        await client.call("add", {"a": 1, "b": 2})


async def test_calling_an_async_task_names_the_right_verb(client: NatqClient, serve: Serve) -> None:
    await serve(RESIZE)

    with pytest.raises(BadInput, match=r"it takes jobs, not calls[^$]*client\.enqueue"):
        await client.call("resize")


async def test_an_answer_that_takes_too_long_is_waited_for_no_longer(
    client: NatqClient, serve: Serve
) -> None:
    released = asyncio.Event()

    async def slow() -> None:
        await released.wait()

    await serve(a_task(slow, name="slow", reply=True))

    with pytest.raises(Waited, match=r"did not answer within 0\.2 s"):
        await client.call("slow", timeout=0.2)
    released.set()


async def test_an_input_that_json_cannot_say_is_refused_with_its_path(
    client: NatqClient, serve: Serve
) -> None:
    await serve(ADD)

    with pytest.raises(BadInput, match="nan") as caught:
        await client.call("add", {"a": [1, float("nan")], "b": 1})

    assert caught.value.path == "$.a[1]"


async def test_a_subject_that_was_announced_is_used_instead_of_a_computed_one(
    client: NatqClient, link: Link, unique: str
) -> None:
    await announce(client, id="far", type=TaskType.SYNC, subject=f"{unique}.elsewhere.far")
    await link.subscribe(
        f"{unique}.elsewhere.far",
        lambda _subject, reply, _headers, _payload: link.publish(
            reply or b"", b"7", headers=b"status: 200\r\n"
        ),
    )

    assert await client.call("far") == 7


async def test_an_answer_that_is_not_json_is_a_typed_error(
    client: NatqClient, link: Link, options: NatqOptions
) -> None:
    await link.subscribe(
        f"{options.sync_prefix}nan",
        lambda _subject, reply, _headers, _payload: link.publish(
            reply or b"", b'{"x": NaN}', headers=b"status: 200\r\n"
        ),
    )

    with pytest.raises(ResultUnreadable, match="the answer of 'nan' is not JSON"):
        await client.call("nan")


# Enqueueing -------------------------------------------------------------------------------


async def test_a_job_can_wait_for_its_first_worker(client: NatqClient, serve: Serve) -> None:
    run = await client.enqueue("resize", {"width": 3})

    assert await run.status() is None
    await serve(RESIZE)

    assert await run.result(10) == 3


async def test_one_run_id_is_one_job_wherever_it_is_given(client: NatqClient, serve: Serve) -> None:
    first = await client.enqueue("resize", {"width": 1}, run_id="r-1")
    again = await client.enqueue("resize", {"width": 2, "runId": "r-1"})
    await serve(RESIZE)

    assert (first.duplicate, again.duplicate, again.run_id) == (False, True, "r-1")
    assert await again.result(10) == 1


async def test_two_different_run_ids_for_one_job_are_refused(client: NatqClient) -> None:
    with pytest.raises(BadInput, match="two run ids") as caught:
        await client.enqueue("resize", {"runId": "a"}, run_id="b")

    assert caught.value.path == "$.runId"


@pytest.mark.parametrize(("body", "run_id", "error", "says"), [
    ({}, "a b", BadRunId, "letters, digits"),
    ({"runId": "a*"}, None, BadRunId, "letters, digits"),
    ([1, 2], None, BadInput, "needs an object"),
    ({"x": object()}, None, BadInput, "not JSON"),
    ({"dropResultOnSuccess": "yes"}, None, BadInput, "only true drops"),
])  # fmt: skip
async def test_a_job_that_can_never_run_is_refused_and_changes_nothing(
    client: NatqClient, body: Any, run_id: str | None, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        await client.enqueue("resize", body, run_id=run_id)

    info = await client.room.jetstream.stream_info(client.room.options.stream)
    assert info.state.messages == 0


@pytest.mark.parametrize("task_id", ["a.b", "a b", "a>", "*", ""])
async def test_a_task_id_never_becomes_a_part_of_another_subject(
    client: NatqClient, task_id: str
) -> None:
    with pytest.raises(ConfigError, match="cannot be used on natq"):
        await client.enqueue(task_id)
    with pytest.raises(ConfigError, match="cannot be used on natq"):
        await client.call(task_id)


async def test_a_job_for_a_sync_task_is_refused_with_the_right_verb(
    client: NatqClient, serve: Serve
) -> None:
    await serve(ADD)

    with pytest.raises(BadInput, match=r"it takes calls, not jobs[^$]*client\.call"):
        await client.enqueue("add", {"a": 1, "b": 2})


async def test_a_stream_that_is_gone_is_told(client: NatqClient) -> None:
    await client.room.jetstream.delete_stream(client.room.options.stream)

    with pytest.raises(NotEnqueued, match="no stream takes jobs of 'resize'"):
        await client.enqueue("resize")


async def test_a_job_larger_than_a_message_is_refused(client: NatqClient) -> None:
    with pytest.raises(PayloadTooLarge):
        await client.enqueue("resize", {"x": "x" * 2_000_000})


# In bulk ----------------------------------------------------------------------------------


async def test_a_bulk_is_stored_and_every_job_runs_once(client: NatqClient, serve: Serve) -> None:
    ran: list[int] = []

    async def note(n: int) -> None:
        ran.append(n)

    report = await client.enqueue_many(Job("note", {"n": n}, f"n-{n % 900}") for n in range(1000))
    await serve(a_task(note, name="note"))
    await client.output("note", "n-899", 20)
    while len(ran) < 900:
        await asyncio.sleep(0.01)

    assert (report.stored, report.duplicates, report.complete) == (1000, 100, True)
    assert sorted(ran) == list(range(900))


async def test_a_bulk_names_the_jobs_that_can_never_run_and_stores_the_others(
    client: NatqClient,
) -> None:
    jobs = [
        Job("resize", {"width": 1}),
        Job("re size"),
        Job("resize", [1]),
        Job("resize", run_id="a b"),
        Job("resize", {"x": float("inf")}),
        Job("resize", {"width": 2}),
    ]

    report = await client.enqueue_many(jobs)

    assert (report.stored, report.refused, report.complete) == (2, 4, False)
    told = {failure.index: str(failure.result) for failure in report.failures}
    assert sorted(told) == [1, 2, 3, 4]
    assert "cannot be used on natq" in told[1]
    assert "needs an object" in told[2]
    assert "cannot be used in a key" in told[3]
    assert "$.x" in told[4]


async def test_a_bulk_may_come_from_an_async_source(client: NatqClient) -> None:
    async def rows() -> AsyncIterator[Job]:
        for n in range(300):
            yield Job("resize", {"width": n})

    report = await client.enqueue_many(rows(), window=16)

    assert (report.stored, report.complete) == (300, True)


async def test_the_memory_of_a_bulk_does_not_grow_with_its_length(client: NatqClient) -> None:
    async def peak_of(count: int) -> int:
        def jobs() -> Iterator[Job]:
            for n in range(count):
                yield Job("resize", {"width": n, "padding": "x" * 200})

        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        assert (await client.enqueue_many(jobs(), window=256)).stored == count
        return tracemalloc.get_traced_memory()[1] - before

    tracemalloc.start()
    try:
        await peak_of(500)  # whatever is made once, is made here
        short, long = await peak_of(1_000), await peak_of(10_000)
    finally:
        tracemalloc.stop()

    assert long < short + 1_000_000  # nine thousand jobs kept would be several times that


async def test_the_public_client_checks_a_bulk_against_the_signatures_it_knows(
    link: Link, options: NatqOptions, serve: Serve
) -> None:
    app = App("shop")
    app.task(resize)
    await serve(app.registry.get("resize"))
    client = await Client.open(link, Settings(natq=options), app)

    report = await client.enqueue_many(
        [
            Job(resize, {"width": 5}, "good"),
            Job("resize", {"width": "wide"}),
            Job("resize", {"runId": "also-good", "width": 6}),
        ]
    )

    assert (report.stored, report.refused) == (2, 1)
    assert "expected `int`" in str(report.failures[0].result).lower()
    assert "$.width" in str(report.failures[0].result)
    assert await client.result("resize", "good", 10) == 5
    assert await client.result("resize", "also-good", 10) == 6
