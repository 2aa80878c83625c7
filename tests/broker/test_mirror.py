"""Mirrors: a copy that is complete at the barrier, and stays so through trouble."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from penstock.broker.bucket import Bucket, BucketConfig, Entry
from penstock.broker.embedded import EmbeddedNats
from penstock.broker.link import Link
from penstock.broker.mirror import Mirror, MirrorBehind
from penstock.broker.options import NatsOptions
from penstock.broker.publisher import Publisher, Stored
from penstock.broker.puller import Message
from penstock.broker.streams import JetStream, StreamConfig


class Copy:
    """What a mirror is kept for: the values by key, and how often all had to be dropped."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.resets = 0

    def apply(self, entry: Entry) -> None:
        if entry.deleted:
            self.values.pop(entry.key, None)
        else:
            self.values[entry.key] = entry.value

    def reset(self) -> None:
        self.values.clear()
        self.resets += 1


@pytest.fixture
async def bucket(link: Link, unique: str) -> Bucket:
    return await Bucket.open(link, unique, BucketConfig(storage="memory"))


@pytest.fixture
async def own_link(fresh_nats: EmbeddedNats) -> AsyncIterator[Link]:
    options = NatsOptions.from_url(fresh_nats.url, request_timeout=timedelta(seconds=1))
    link = await Link.open(options)
    yield link
    await link.close(drain=False)


async def fill(bucket: Bucket, count: int, value: bytes = b"x") -> None:
    sent = []
    for number in range(count):
        await bucket.link.room()
        sent.append(bucket.send_put(f"k.{number}", value))
    assert all(isinstance(outcome, Stored) for outcome in await asyncio.gather(*sent))


async def test_the_copy_holds_what_was_there_and_what_changes(bucket: Bucket) -> None:
    copy = Copy()
    await bucket.put("a", b"1")
    await bucket.put("b", b"1")
    async with Mirror.of_bucket(bucket, copy.apply) as mirror:
        await asyncio.wait_for(mirror.ready.wait(), 10)
        assert copy.values == {"a": b"1", "b": b"1"}

        await bucket.put("a", b"2")
        await bucket.delete("b")
        await mirror.barrier()

        assert copy.values == {"a": b"2"}


async def test_every_write_answered_before_the_barrier_is_seen_after_it(
    bucket: Bucket, nats_server: EmbeddedNats
) -> None:
    copy = Copy()
    elsewhere = await Link.open(NatsOptions.from_url(nats_server.url))
    theirs = await Bucket.open(elsewhere, bucket.name)
    async with Mirror.of_bucket(bucket, copy.apply) as mirror:
        for number in range(200):
            await theirs.put("k", b"%d" % number)
            await mirror.barrier()
            assert copy.values["k"] == b"%d" % number
    await elsewhere.close()


async def test_an_empty_bucket_has_an_open_barrier(bucket: Bucket) -> None:
    async with Mirror.of_bucket(bucket, Copy().apply) as mirror:
        assert mirror.ready.is_set()
        await mirror.barrier()


async def test_the_barrier_passes_when_the_last_record_is_gone(bucket: Bucket) -> None:
    """The stream's last sequence is then one that no follower will ever be given."""
    await fill(bucket, 5)
    js = JetStream(bucket.link)
    await js.purge(bucket.stream, subject=f"{bucket.prefix}k.4")
    async with Mirror.of_bucket(bucket, Copy().apply) as mirror:
        await mirror.barrier()
        assert mirror.applied == 4


async def test_a_part_of_a_bucket_can_be_mirrored(bucket: Bucket) -> None:
    copy = Copy()
    await bucket.put("in.a", b"1")
    async with Mirror.of_bucket(bucket, copy.apply, pattern="in.>") as mirror:
        await bucket.put("in.b", b"1")
        await bucket.put("out.a", b"1")
        await mirror.barrier()
    assert sorted(copy.values) == ["in.a", "in.b"]


async def test_parts_of_a_stream_can_be_mirrored(link: Link, unique: str) -> None:
    seen: list[bytes] = []

    def note(message: Message) -> None:
        seen.append(message.payload)

    stream = StreamConfig(name=unique, subjects=[f"{unique}.>"], storage="memory")
    await JetStream(link).ensure_stream(stream)
    filters = [f"{unique}.a.*", f"{unique}.b.*"]
    async with Mirror.of_stream(link, unique, note, filters=filters) as mirror:
        for subject in ("a.1", "c.1", "b.1", "a.1", "c.2"):
            await Publisher(link).publish(f"{unique}.{subject}".encode(), subject.encode())
        await mirror.barrier()
    assert seen == [b"a.1", b"b.1", b"a.1"]


async def test_a_barrier_that_cannot_be_reached_says_so(
    own_link: Link, fresh_nats: EmbeddedNats
) -> None:
    bucket = await Bucket.open(own_link, "state", BucketConfig())
    async with Mirror.of_bucket(bucket, Copy().apply) as mirror:
        fresh_nats.pause()
        started_at = time.monotonic()
        with pytest.raises(MirrorBehind, match=r"behind the stream, after 0\.2 s"):
            await mirror.barrier(timeout=0.2)
        assert time.monotonic() - started_at < 2
        fresh_nats.resume()
        await mirror.barrier(timeout=10)


async def test_an_apply_that_raises_is_told_at_the_barrier(bucket: Bucket) -> None:
    def broken(entry: Entry) -> None:
        raise ValueError(f"cannot read {entry.key}")

    async with Mirror.of_bucket(bucket, broken) as mirror:
        await bucket.put("bad", b"?")
        with pytest.raises(MirrorBehind) as behind:
            await mirror.barrier(timeout=5)
        assert "cannot read bad" in str(behind.value.__cause__)
        assert isinstance(mirror.failed, ValueError)


async def test_a_stopped_mirror_releases_who_waits(bucket: Bucket) -> None:
    mirror = Mirror.of_bucket(bucket, Copy().apply)
    await mirror.start()
    await mirror.stop()
    await mirror.stop()
    with pytest.raises(MirrorBehind):
        await mirror.barrier(timeout=5)


@pytest.mark.parametrize("how", ["restart", "kill"])
async def test_the_copy_is_complete_again_after_the_server_was_away(
    own_link: Link, fresh_nats: EmbeddedNats, how: str
) -> None:
    copy = Copy()
    bucket = await Bucket.open(own_link, "state", BucketConfig())
    await fill(bucket, 300, b"old")
    async with Mirror.of_bucket(bucket, copy.apply, reset=copy.reset) as mirror:
        await mirror.barrier(10)
        if how == "kill":
            fresh_nats.kill()
        await asyncio.to_thread(fresh_nats.restart)
        other = await Link.open(NatsOptions.from_url(fresh_nats.url))
        await fill(await Bucket.open(other, "state"), 600, b"new")
        await other.close()

        await own_link.flush(10)
        await mirror.barrier(10)

        assert copy.values == {f"k.{number}": b"new" for number in range(600)}
        assert copy.resets == 0


async def test_a_stream_made_anew_resets_the_copy(own_link: Link) -> None:
    copy = Copy()
    bucket = await Bucket.open(own_link, "state", BucketConfig())
    await fill(bucket, 5)
    async with Mirror.of_bucket(bucket, copy.apply, reset=copy.reset) as mirror:
        await mirror.barrier(10)
        await JetStream(own_link).delete_stream(bucket.stream)
        again = await Bucket.open(own_link, "state", BucketConfig())
        await again.put("fresh", b"1")

        async with asyncio.timeout(20):
            while copy.values != {"fresh": b"1"}:
                await asyncio.sleep(0.02)
        assert copy.resets == 1
        await mirror.barrier(10)


async def test_a_hundred_thousand_records_are_rebuilt_in_a_second_of_our_time(
    own_link: Link,
) -> None:
    count = 100_000
    bucket = await Bucket.open(own_link, "big", BucketConfig(storage="memory"))
    await fill(bucket, count, b"x" * 500)
    copy = Copy()
    started_at = time.process_time()

    async with Mirror.of_bucket(bucket, copy.apply) as mirror:
        await asyncio.wait_for(mirror.ready.wait(), 60)
        used = time.process_time() - started_at
        await mirror.barrier(10)

    assert len(copy.values) == count
    print(f"rebuild of {count} records: {used:.2f} s CPU, {used / count * 1e6:.1f} us each")
    assert used < 2.5  # about 0.7 on an idle machine
