"""Watching a bucket: what is there, then what changes, through restarts of the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.broker.bucket import Bucket, BucketConfig, Watch
from penstock.broker.embedded import EmbeddedNats
from penstock.broker.link import Link
from penstock.broker.options import NatsOptions
from penstock.broker.publisher import Stored
from penstock.broker.streams import ApiError, JetStream


@pytest.fixture
async def bucket(link: Link, unique: str) -> Bucket:
    return await Bucket.open(link, unique, BucketConfig(storage="memory", history=3))


@pytest.fixture
async def own_link(fresh_nats: EmbeddedNats) -> AsyncIterator[Link]:
    link = await Link.open(NatsOptions.from_url(fresh_nats.url))
    yield link
    await link.close(drain=False)


async def put(bucket: Bucket, *keys: str) -> None:
    for key in keys:
        assert isinstance(await bucket.put(key, key.encode()), Stored)


async def keys_of(watch: Watch, count: int) -> list[str]:
    found = []
    async with asyncio.timeout(20):
        for _ in range(count):
            found.append((await anext(watch)).key)
    return found


async def test_values_come_first_then_changes(bucket: Bucket) -> None:
    await put(bucket, "a", "b", "a")
    async with await bucket.watch() as watch:
        assert not watch.ready.is_set()
        assert await keys_of(watch, 2) == ["b", "a"]
        assert watch.ready.is_set()

        await put(bucket, "c")

        assert await keys_of(watch, 1) == ["c"]


async def test_an_empty_bucket_is_ready_at_once(bucket: Bucket) -> None:
    async with await bucket.watch() as watch:
        assert watch.ready.is_set()
        assert await watch.initial() == []
        assert await watch.next(0.05) is None


async def test_history_comes_when_asked_for(bucket: Bucket) -> None:
    await put(bucket, "a", "b", "a")
    async with await bucket.watch(include_history=True) as watch:
        assert [entry.key for entry in await watch.initial()] == ["a", "b", "a"]


async def test_updates_only_leaves_out_what_is_there(bucket: Bucket) -> None:
    await put(bucket, "a")
    async with await bucket.watch(updates_only=True) as watch:
        assert watch.ready.is_set()
        await put(bucket, "b")
        assert await keys_of(watch, 1) == ["b"]


async def test_deletes_are_told_or_left_out(bucket: Bucket) -> None:
    await put(bucket, "a", "b")
    await bucket.delete("a")

    async with await bucket.watch() as told, await bucket.watch(ignore_deletes=True) as silent:
        assert [entry.deleted for entry in await told.initial()] == [False, True]
        assert [entry.key for entry in await silent.initial()] == ["b"]


async def test_only_keys_that_meet_the_pattern_come(bucket: Bucket) -> None:
    await put(bucket, "a.1", "b.1", "a.2", "a.2.x")
    async with await bucket.watch("a.*") as watch:
        assert [entry.key for entry in await watch.initial()] == ["a.1", "a.2"]


async def test_delta_counts_what_is_still_to_come(bucket: Bucket) -> None:
    await put(bucket, "a", "b", "c")
    async with await bucket.watch() as watch:
        assert [entry.delta for entry in await watch.initial()] == [2, 1, 0]


async def test_stopping_ends_an_iteration_under_way(bucket: Bucket) -> None:
    watch = await bucket.watch()
    seen: list[str] = []

    async def follow() -> None:
        async for entry in watch:
            seen.append(entry.key)

    follower = asyncio.create_task(follow())
    await put(bucket, "a")
    async with asyncio.timeout(10):
        while not seen:
            await asyncio.sleep(0.005)
        await watch.stop()
        await watch.stop()
        await follower
    assert seen == ["a"]


async def test_a_stopped_watch_leaves_no_consumer_behind(bucket: Bucket) -> None:
    js = JetStream(bucket.link)
    async with await bucket.watch() as watch:
        await watch.next(0.05)
        assert len(await js.consumer_names(bucket.stream)) == 1

    await bucket.link.flush()
    async with asyncio.timeout(10):
        while await js.consumer_names(bucket.stream):
            await asyncio.sleep(0.01)


async def test_a_cancelled_wait_loses_nothing(bucket: Bucket) -> None:
    got: list[str] = []
    async with await bucket.watch() as watch:

        async def take_one() -> None:
            got.append((await anext(watch)).key)

        for number in range(20):  # cancelled before, while and after the record arrives
            waiting = asyncio.create_task(take_one())
            await asyncio.sleep(0.0005 * (number % 5))
            await put(bucket, f"k{number}")
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        got += await keys_of(watch, 20 - len(got))

    assert got == [f"k{number}" for number in range(20)]


async def test_a_vanished_consumer_is_made_again_without_a_gap(bucket: Bucket) -> None:
    js = JetStream(bucket.link)
    async with await bucket.watch() as watch:
        await put(bucket, "a")
        assert await keys_of(watch, 1) == ["a"]
        waiting = asyncio.create_task(keys_of(watch, 2))
        for name in await js.consumer_names(bucket.stream):
            await js.delete_consumer(bucket.stream, name)
        await put(bucket, "b", "c")

        assert await waiting == ["b", "c"]


@pytest.mark.parametrize("how", ["restart", "kill"])
async def test_a_watch_goes_on_after_the_server_was_away(
    own_link: Link, fresh_nats: EmbeddedNats, how: str
) -> None:
    bucket = await Bucket.open(own_link, "state", BucketConfig())
    await put(bucket, "a")
    async with await bucket.watch() as watch:
        assert await keys_of(watch, 1) == ["a"]
        waiting = asyncio.create_task(keys_of(watch, 3))
        await asyncio.sleep(0)

        if how == "kill":
            fresh_nats.kill()
        await asyncio.to_thread(fresh_nats.restart)
        other = await Link.open(NatsOptions.from_url(fresh_nats.url))
        await put(await Bucket.open(other, "state"), "b", "c", "d")

        assert await waiting == ["b", "c", "d"]
        await other.close()


async def test_records_written_all_through_a_restart_all_arrive_in_order(
    own_link: Link, fresh_nats: EmbeddedNats
) -> None:
    bucket = await Bucket.open(own_link, "state", BucketConfig(history=1))
    stored: list[str] = []

    async def write() -> None:
        for number in range(400):
            outcome = await bucket.put(f"k{number}", b"x")
            if isinstance(outcome, Stored):
                stored.append(f"k{number}")

    bucket.write_timeout = 1.0
    async with await bucket.watch() as watch:
        writer = asyncio.create_task(write())
        seen = await keys_of(watch, 50)
        await asyncio.to_thread(fresh_nats.restart)
        await writer
        while not set(stored) <= set(seen):
            entry = await watch.next(10)
            assert entry is not None, f"{len(set(stored) - set(seen))} never came"
            seen.append(entry.key)

    numbers = [int(key[1:]) for key in seen]
    assert numbers == sorted(set(numbers))


async def test_a_deleted_bucket_ends_the_watch_with_an_error(bucket: Bucket) -> None:
    async with await bucket.watch() as watch:
        waiting = asyncio.create_task(anext(watch))
        await asyncio.sleep(0)
        await JetStream(bucket.link).delete_stream(bucket.stream)
        with pytest.raises(ApiError, match="stream not found"):
            async with asyncio.timeout(20):
                await waiting
