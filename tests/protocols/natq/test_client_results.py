"""Results on a real server: waited for without polling, gathered, dropped, found again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core import codec
from penstock.core.errors import TaskFailed, UnknownName, Waited
from penstock.protocols.natq.client import NatqClient
from penstock.protocols.natq.options import NatqOptions
from penstock.protocols.natq.results import ResultUnreadable
from penstock.protocols.natq.wire import StatusCode, TaskType
from tests.protocols.natq.conftest import Serve, a_task
from tests.protocols.natq.test_client import ADD, RESIZE, refuse

if TYPE_CHECKING:
    from penstock.broker.link import Link


async def test_a_result_arrives_while_it_is_waited_for(client: NatqClient, serve: Serve) -> None:
    released = asyncio.Event()

    async def later() -> str:
        await released.wait()
        return "done"

    await serve(a_task(later, name="later"))
    run = await client.enqueue("later")
    waiter = asyncio.create_task(run.result(20))
    while (status := await run.status()) is None:
        await asyncio.sleep(0.01)
    assert status.status == StatusCode.PROCESSING
    released.set()

    assert await waiter == "done"


async def test_waiting_reads_only_when_the_broker_hints(
    client: NatqClient, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No polling: two seconds without news see three looks, all of them at the beginning."""
    bucket = client.room.results
    looks = 0
    get = bucket.get

    async def counted(*args: Any, **how: Any) -> Any:
        nonlocal looks
        looks += 1
        return await get(*args, **how)

    monkeypatch.setattr(bucket, "get", counted)
    with pytest.raises(Waited):
        await client.result("resize", "r", timeout=2)

    assert looks == 3


async def test_a_result_written_just_before_the_wait_and_not_readable_yet_is_found_soon(
    client: NatqClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hint went out before anybody listened, so none is coming."""
    bucket = client.room.results
    await bucket.put("resize.r", b'{"id":"r","taskId":"resize","status":100}')
    before = await bucket.get("resize.r")
    await bucket.put("resize.r", b'{"id":"r","taskId":"resize","status":200,"data":7}')
    get, looks = bucket.get, 0

    async def slow_to_know(*args: Any, **how: Any) -> Any:
        nonlocal looks
        looks += 1
        return before if looks == 1 else await get(*args, **how)

    monkeypatch.setattr(bucket, "get", slow_to_know)

    assert await client.result("resize", "r", timeout=5) == 7


async def test_a_hint_that_comes_during_a_look_is_waited_for_patiently(
    client: NatqClient, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy server tells of a write long before it can be read."""
    bucket = client.room.results
    await bucket.put("resize.r", b'{"id":"r","taskId":"resize","status":100}')
    before = await bucket.get("resize.r")
    get, looks = bucket.get, 0

    async def slow_to_know(*args: Any, **how: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks == 1:
            await bucket.put("resize.r", b'{"id":"r","taskId":"resize","status":200,"data":7}')
            await link.flush()  # the hint is here by now
        return before if looks <= 3 else await get(*args, **how)

    monkeypatch.setattr(bucket, "get", slow_to_know)

    assert await client.result("resize", "r", timeout=5) == 7


async def test_a_run_that_failed_raises_when_its_result_is_asked_for(
    client: NatqClient, serve: Serve
) -> None:
    await serve(a_task(refuse, name="refuse"))
    run = await client.enqueue("refuse")

    with pytest.raises(TaskFailed) as caught:
        await run.result(10)

    assert (caught.value.status, caught.value.run_id) == (409, run.run_id)
    assert caught.value.data == {"until": "monday"}


async def test_a_result_that_does_not_come_is_waited_for_no_longer(client: NatqClient) -> None:
    with pytest.raises(Waited, match=r"no result of resize r within 0\.2 s"):
        await client.result("resize", "r", timeout=0.2)


async def test_a_dropped_result_that_is_waited_for_is_caught_on_its_way(
    client: NatqClient, serve: Serve
) -> None:
    run = await client.enqueue("resize", {"width": 7}, drop_result=True)
    waiter = asyncio.create_task(run.result(20))
    await asyncio.sleep(0)
    await serve(RESIZE)

    assert await waiter in (7, None)
    while await run.status() is not None:  # the drop comes after the ack
        await asyncio.sleep(0.01)
    assert await run.result(5) is None


async def test_a_result_that_an_operator_withdrew_does_not_pass_for_a_dropped_one(
    client: NatqClient, serve: Serve
) -> None:
    await serve(RESIZE)
    run = await client.enqueue("resize")
    await run.result(10)
    await client.room.results.purge(f"resize.{run.run_id}")

    with pytest.raises(Waited):
        await run.result(0.3)


async def test_the_marker_of_an_earlier_run_does_not_pass_for_the_end_of_this_one(
    client: NatqClient, serve: Serve
) -> None:
    await client.room.results.put("resize.r", b'{"id":"r","taskId":"resize","status":200}')
    await client.room.results.delete("resize.r")
    run = await client.enqueue("resize", {"width": 9}, run_id="r")
    waiter = asyncio.create_task(run.result(30))
    gatherer = asyncio.create_task(client.results([run], timeout=30))
    with pytest.raises(Waited):
        await run.result(0.3)
    await serve(RESIZE)

    assert await waiter == 9
    assert (await gatherer)["r"].data == 9


async def test_many_results_are_gathered_dropped_ones_and_failures_too(
    client: NatqClient, serve: Serve
) -> None:
    runs = [await client.enqueue("resize", {"width": n}) for n in range(20)]
    dropped = await client.enqueue("resize", {"width": 1}, drop_result=True)
    failed = await client.enqueue("refuse")
    await serve(RESIZE, a_task(refuse, name="refuse"))

    found = await client.results([*runs, dropped, failed], timeout=20)

    assert [found[run.run_id].data for run in runs] == list(range(20))
    assert found[failed.run_id].status == 409
    assert found[dropped.run_id].status == 200


async def test_results_that_do_not_come_are_counted(client: NatqClient) -> None:
    run = await client.enqueue("resize")

    with pytest.raises(Waited, match=r"1 of 1 results did not come within 0\.2 s"):
        await client.results([run], timeout=0.2)


async def test_a_record_in_the_manner_of_other_sdks_is_read(client: NatqClient) -> None:
    record = b'{"id": 42, "taskId": "t", "status": 200, "data": {"x": NaN}, "error": null}'
    await client.room.results.put("t.42", record)

    output = await client.output("t", "42", 5)

    assert (output.id, output.status) == ("42", 200)
    assert output.data["x"] != output.data["x"]


async def test_a_record_that_nobody_can_read_is_a_typed_error(client: NatqClient) -> None:
    await client.room.results.put("t.r", b"{nonsense")

    with pytest.raises(ResultUnreadable, match=r"the record t\.r cannot be read"):
        await client.result("t", "r", 5)
    with pytest.raises(ResultUnreadable):
        await client.status("t", "r")


# Discovery --------------------------------------------------------------------------------


async def test_tasks_are_found_with_type_subject_and_schemas(
    client: NatqClient, serve: Serve, options: NatqOptions
) -> None:
    await serve(ADD, RESIZE)

    found = await client.tasks()

    assert list(found) == ["add", "resize"]
    assert found["add"].type is TaskType.SYNC
    assert found["add"].subject == f"{options.sync_prefix}add"
    assert found["resize"].subject == f"{options.async_prefix}resize"
    schema = codec.decode(found["add"].input_schema or "")
    assert schema["required"] == ["a", "b"]
    assert await client.task("add") == found["add"]


async def test_definitions_of_other_sdks_and_broken_ones_do_not_hide_the_rest(
    client: NatqClient, serve: Serve
) -> None:
    await serve(ADD)
    await client.room.tasks.put("p-a", b'{"id":"p-a","type":"async"}')
    await client.room.tasks.put("broken", b'{"id":"broken","type":"odd"}')

    found = await client.tasks()

    assert list(found) == ["add", "p-a"]
    assert found["p-a"].subject is None


async def test_asking_for_one_unknown_task_names_the_nearest(
    client: NatqClient, serve: Serve
) -> None:
    await serve(RESIZE)

    with pytest.raises(UnknownName, match="did you mean 'resize'"):
        await client.task("resise")
