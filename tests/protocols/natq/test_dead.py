"""Attempt limits on a real server: the last word, its dead letter, and another life."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from penstock.core.errors import UnknownName
from penstock.core.policy import Backoff
from penstock.protocols.natq.admin import NatqAdmin
from penstock.protocols.natq.client import NatqClient
from penstock.protocols.natq.dead import DeadLetter, dead_letters
from penstock.protocols.natq.options import NatqOptions
from penstock.protocols.natq.room import Room
from tests.protocols.natq.conftest import Serve, Story, a_task

QUICK = Backoff(base=timedelta(milliseconds=5), ceiling=timedelta(milliseconds=5))


async def letters(room: Room, task_id: str = "") -> list[DeadLetter]:
    return [letter async for letter in dead_letters(room, task_id)]


class Fragile:
    """A handler that fails until it is mended."""

    def __init__(self) -> None:
        self.mended = False
        self.ran = 0

    async def job(self, n: int = 0) -> dict[str, int]:
        self.ran += 1
        if not self.mended:
            raise RuntimeError("broken")
        return {"n": n}


@pytest.fixture
def fragile() -> Fragile:
    return Fragile()


def a_fragile(fragile: Fragile, **how: Any) -> Any:
    return a_task(fragile.job, **{"backoff": QUICK, "retries": 2, **how})


async def test_without_a_limit_a_job_is_tried_for_as_long_as_it_takes(
    serve: Serve, client: NatqClient, fragile: Fragile, story: Story, room: Room,
    options: NatqOptions,
) -> None:  # fmt: skip
    await serve(a_task(fragile.job, backoff=QUICK))
    run = await client.enqueue("job")
    while fragile.ran < 12:
        await story.until("NAK")
        story.words.clear()
    fragile.mended = True

    assert await run.result(10) == {"n": 0}
    assert options.dead_stream not in await room.jetstream.stream_names()


async def test_the_last_attempt_writes_the_error_terminates_and_keeps_a_copy(
    serve: Serve, client: NatqClient, fragile: Fragile, story: Story
) -> None:
    await serve(a_fragile(fragile))
    run = await client.enqueue("job", {"n": 7}, run_id="r-1", trace="00-aa-bb-01")

    told = await story.until("TERM")
    (letter,) = await letters(client.room)
    output = await client.output("job", "r-1", 5)

    assert fragile.ran == 3
    assert [word for word in told if word[:3] == "put"] == [*["put 100"] * 3, "put 500"]
    assert (output.status, output.error) == (500, "Unhandled exception: broken")
    assert (letter.task_id, letter.run_id, letter.attempts) == ("job", run.run_id, 3)
    assert (letter.status, letter.error) == (500, "Unhandled exception: broken")
    assert msgspec.json.decode(letter.payload) == {"n": 7, "runId": "r-1"}


async def test_a_limit_of_the_settings_holds_for_tasks_without_their_own(
    serve: Serve, client: NatqClient, fragile: Fragile, options: NatqOptions
) -> None:
    limited = msgspec.structs.replace(options, max_attempts=2)
    own = a_task(fragile.job, name="own", backoff=QUICK, retries=0)
    await serve(a_task(fragile.job, backoff=QUICK), own, options=limited)
    first, second = await client.enqueue("job"), await client.enqueue("own")

    await client.results([first, second], timeout=20)

    attempts = {letter.task_id: letter.attempts for letter in await letters(client.room)}
    assert attempts == {"job": 2, "own": 1}


async def test_dead_letters_can_be_turned_off(
    serve: Serve, client: NatqClient, fragile: Fragile, options: NatqOptions, room: Room
) -> None:
    off = msgspec.structs.replace(options, dead_letters=False)
    await serve(a_fragile(fragile), options=off)
    run = await client.enqueue("job")

    assert (await client.output("job", run.run_id, 20)).status == 500
    assert options.dead_stream not in await room.jetstream.stream_names()


async def test_a_rejected_job_is_no_dead_letter(
    serve: Serve, client: NatqClient, fragile: Fragile
) -> None:
    await serve(a_fragile(fragile))
    run = await client.enqueue("job", {"n": "x"})

    assert (await client.output("job", run.run_id, 20)).status == 400
    assert await letters(client.room) == []


async def test_a_replayed_job_gets_all_its_attempts_and_its_waiters_their_result(
    serve: Serve, client: NatqClient, fragile: Fragile
) -> None:
    serving = await serve(a_fragile(fragile))
    run = await client.enqueue("job", {"n": 7})
    await client.output("job", run.run_id, 20)
    await serving.stop()  # so that the record stays withdrawn for a while
    fragile.mended = True

    done = await NatqAdmin(client.room).act("replay", "job", [run.run_id])
    await serve(a_fragile(fragile))

    assert done.changed == 1
    assert await run.result(20) == {"n": 7}
    assert await letters(client.room) == []


async def test_a_job_that_dies_again_is_a_dead_letter_again(
    serve: Serve, client: NatqClient, fragile: Fragile, story: Story
) -> None:
    await serve(a_fragile(fragile))
    run = await client.enqueue("job")
    await story.until("TERM")
    story.words.clear()
    await NatqAdmin(client.room).act("replay", "job", [])
    await story.until("TERM")

    assert fragile.ran == 6
    (letter,) = await letters(client.room)
    assert (letter.run_id, letter.attempts) == (run.run_id, 3)


async def test_operators_find_show_count_and_drop_dead_letters(
    serve: Serve, client: NatqClient, fragile: Fragile
) -> None:
    serving = await serve(
        a_fragile(fragile, retries=0), a_fragile(fragile, retries=0, name="other")
    )
    runs = [await client.enqueue("job", {"n": n}) for n in range(3)]
    await client.results([*runs, await client.enqueue("other")], timeout=20)
    await serving.stop()
    admin = NatqAdmin(client.room)

    counts = {queue.name: queue.failed for queue in await admin.queues()}
    first = await admin.find(name="job", state="dead", limit=2)
    rest = await admin.find(name="job", state="dead", limit=2, cursor=first.cursor)
    dropped = await admin.act("drop", "job", [runs[0].run_id, "nobody"])

    assert counts == {"job": 3, "other": 1}
    assert [len(first.items), len(rest.items), rest.cursor] == [2, 1, ""]
    assert first.items[0].detail["payload"]["n"] in (0, 1, 2)
    assert (dropped.changed, dropped.refused) == (1, ("nobody",))
    assert len(await letters(client.room, "job")) == 2
    with pytest.raises(UnknownName, match="did you mean 'dead'"):
        await admin.find(state="ded")


async def test_operators_find_records_by_state_and_page_through_them(
    serve: Serve, client: NatqClient, fragile: Fragile
) -> None:
    fragile.mended = True
    await serve(a_fragile(fragile))
    runs = [await client.enqueue("job", {"n": n}) for n in range(5)]
    runs.append(await client.enqueue("job", {"n": "x"}))
    await client.results(runs, timeout=20)
    await client.room.results.put("job.odd", b"{nonsense")
    admin = NatqAdmin(client.room)

    page = await admin.find(name="job", state="succeeded", limit=3)
    more = await admin.find(name="job", state="succeeded", limit=3, cursor=page.cursor)
    (failed,) = (await admin.find(state="failed")).items
    (odd,) = [view for view in (await admin.find()).items if view.work_id == "odd"]
    shown = await admin.show("job", runs[0].run_id)

    assert {view.result["n"] for view in (*page.items, *more.items)} == set(range(5))
    assert (failed.work_id, failed.detail["status"]) == (runs[5].run_id, 400)
    assert odd.state == "unreadable"
    assert shown is not None and shown.state == "succeeded"
    assert await admin.show("job", "nobody") is None
