"""Buckets: compare-and-set on real records, in company with the stock NATS client."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from nats.js.api import KeyValueConfig

from penstock.broker.bucket import Bucket, BucketConfig, Operation, check_key
from penstock.broker.embedded import EmbeddedNats
from penstock.broker.link import Link
from penstock.broker.options import NatsOptions
from penstock.broker.publisher import Refused, Stored, Unknown
from penstock.broker.streams import JetStream
from penstock.core.errors import BadInput, ConfigError, UnknownName


async def bucket_of(link: Link, name: str, **config: object) -> Bucket:
    return await Bucket.open(link, name, BucketConfig(storage="memory", **config))


async def revision_of(write: object) -> int:
    outcome = await write  # type: ignore[misc]
    assert isinstance(outcome, Stored), outcome
    return outcome.seq


async def test_a_value_comes_back_with_revision_and_time(link: Link, unique: str) -> None:
    bucket = await bucket_of(link, unique)

    revision = await revision_of(bucket.put("a.b", b"one"))

    for leader in (False, True):
        entry = await bucket.get("a.b", leader=leader)
        assert entry is not None
        assert (entry.key, entry.value, entry.revision) == ("a.b", b"one", revision)
        assert entry.operation is Operation.PUT and not entry.deleted
        assert abs(datetime.now(UTC) - entry.created_at) < timedelta(minutes=1)


async def test_a_bucket_is_found_where_there_is_one(link: Link, unique: str) -> None:
    assert await Bucket.find(link, unique) is None
    await revision_of((await bucket_of(link, unique)).put("a", b"one"))

    found = await Bucket.find(link, unique)

    assert found is not None
    assert (entry := await found.get("a")) is not None
    assert entry.value == b"one"


async def test_a_key_never_written_is_none(link: Link, unique: str) -> None:
    bucket = await bucket_of(link, unique)
    assert await bucket.get("nothing") is None
    assert await bucket.get("nothing", leader=True) is None


async def test_of_two_updates_at_one_revision_only_one_is_stored(link: Link, unique: str) -> None:
    bucket = await bucket_of(link, unique)
    first = await revision_of(bucket.put("k", b"0"))

    won, lost = await asyncio.gather(
        bucket.update("k", b"ann", first), bucket.update("k", b"bob", first)
    )

    assert isinstance(won, Stored)
    assert isinstance(lost, Refused) and lost.is_conflict
    entry = await bucket.get("k", leader=True)
    assert entry is not None and entry.value == b"ann"


async def test_create_works_once_and_again_over_a_delete_marker(link: Link, unique: str) -> None:
    bucket = await bucket_of(link, unique)

    assert isinstance(await bucket.create("k", b"1"), Stored)
    assert isinstance(await bucket.create("k", b"2"), Refused)
    await bucket.delete("k")
    assert isinstance(await bucket.create("k", b"3"), Stored)
    await bucket.purge("k")
    assert isinstance(await bucket.create("k", b"4"), Stored)


async def test_delete_and_purge_leave_markers_that_can_be_read(link: Link, unique: str) -> None:
    bucket = await bucket_of(link, unique, history=5)
    await bucket.put("d", b"1")
    await bucket.put("p", b"1")

    await bucket.delete("d")
    await bucket.purge("p")

    deleted, purged = await bucket.get("d"), await bucket.get("p", leader=True)
    assert deleted is not None and deleted.operation is Operation.DEL and deleted.deleted
    assert purged is not None and purged.operation is Operation.PURGE
    counts = await JetStream(link).subject_counts(bucket.stream)
    assert counts == {f"$KV.{unique}.d": 2, f"$KV.{unique}.p": 1}


@pytest.mark.parametrize("what", ["delete", "purge"])
async def test_removing_can_be_conditional(link: Link, unique: str, what: str) -> None:
    bucket = await bucket_of(link, unique)
    old = await revision_of(bucket.put("k", b"1"))
    new = await revision_of(bucket.put("k", b"2"))

    refused = await getattr(bucket, what)("k", old)
    still = await bucket.get("k", leader=True)
    stored = await getattr(bucket, what)("k", new)

    assert isinstance(refused, Refused) and refused.is_conflict
    assert still is not None and still.value == b"2"
    assert isinstance(stored, Stored)


async def test_a_purge_marker_can_vanish_by_itself(link: Link, unique: str) -> None:
    bucket = await bucket_of(link, unique, allow_msg_ttl=True)
    revision = await revision_of(bucket.put("k", b"1"))
    async with await bucket.watch() as watch:
        await bucket.purge("k", revision, marker_ttl=timedelta(seconds=1))
        assert [entry.key for entry in await watch.initial()] == ["k"]

    deadline = asyncio.get_running_loop().time() + 10
    while await bucket.get("k", leader=True) is not None:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)
    assert isinstance(await bucket.create("k", b"2"), Stored)


async def test_a_value_lives_as_long_as_it_was_given(link: Link, unique: str) -> None:
    bucket = await bucket_of(link, unique, marker_ttl=timedelta(minutes=1))
    async with await bucket.watch(updates_only=True) as watch:
        await bucket.put("k", b"1", ttl=timedelta(milliseconds=200))  # the least is one second
        put, expired = await watch.next(5), await watch.next(10)

    assert put is not None and put.value == b"1"
    assert expired is not None and expired.operation is Operation.PURGE


async def test_a_time_to_live_is_refused_where_the_bucket_has_none(link: Link, unique: str) -> None:
    bucket = await bucket_of(link, unique)
    with pytest.raises(ConfigError, match="does not allow a time to live"):
        bucket.send_put("k", b"1", ttl=timedelta(seconds=5))


async def test_writes_are_pipelined_and_answered_one_by_one(link: Link, unique: str) -> None:
    bucket = await bucket_of(link, unique)

    sent = [bucket.send_put(f"k{n % 50}", b"%d" % n, revision=0) for n in range(100)]
    outcomes = await asyncio.gather(*sent)

    assert [type(outcome) for outcome in outcomes] == [Stored] * 50 + [Refused] * 50


async def test_many_keys_are_read_at_once(link: Link, unique: str) -> None:
    bucket = await bucket_of(link, unique)
    for number in range(20):
        await bucket.put(f"k.{number}", b"%d" % number)

    for leader in (False, True):
        found = await bucket.get_many([f"k.{n}" for n in range(30)], leader=leader)
        assert {key: entry.value for key, entry in found.items()} == {
            f"k.{n}": b"%d" % n for n in range(20)
        }


async def test_keys_are_listed_without_deleted_ones(link: Link, unique: str) -> None:
    bucket = await bucket_of(link, unique, history=3)
    for key in ("a.1", "a.2", "b.1", "a.1"):
        await bucket.put(key, b"x")
    await bucket.delete("a.2")

    assert sorted(await bucket.keys()) == ["a.1", "b.1"]
    assert await bucket.keys("a.*") == ["a.1"]
    assert await bucket.keys("c.>") == []


async def test_status_tells_how_the_bucket_is_kept(link: Link, unique: str) -> None:
    bucket = await bucket_of(link, unique, history=4, ttl=timedelta(hours=1))
    await bucket.put("a", b"x")

    status = await bucket.status()

    assert (status.name, status.records, status.history) == (unique, 1, 4)
    assert (status.ttl, status.storage, status.last_revision) == (
        timedelta(hours=1),
        "memory",
        1,
    )


async def test_a_missing_bucket_is_not_made_unasked(link: Link, unique: str) -> None:
    await bucket_of(link, unique)
    with pytest.raises(UnknownName, match="is not known") as unknown:
        await Bucket.open(link, unique + "x")
    assert unique in unknown.value.remedy


@pytest.mark.parametrize("key", ["", ".", "a.", ".a", "a..b", "a b", "a*", "a.>", "ä", "a\n"])
def test_keys_that_others_could_not_read_are_refused(key: str) -> None:
    with pytest.raises(BadInput, match="cannot be a key"):
        check_key(key)


async def test_the_stock_client_and_we_share_a_bucket_it_made(link: Link, unique: str) -> None:
    theirs = await link.client.jetstream().create_key_value(
        KeyValueConfig(bucket=unique, history=3)
    )
    ours = await Bucket.open(link, unique)

    revision = await theirs.put("from.them", b"1")
    await ours.put("from.us", b"2")
    await theirs.put("gone", b"3")
    await theirs.delete("gone")

    assert (await theirs.get("from.us")).value == b"2"
    assert isinstance(await ours.update("from.them", b"4", revision), Stored)
    assert (await theirs.get("from.them")).value == b"4"
    gone = await ours.get("gone")
    assert gone is not None and gone.operation is Operation.DEL


async def test_the_stock_client_understands_a_bucket_we_made(link: Link, unique: str) -> None:
    ours = await bucket_of(link, unique, history=2, ttl=timedelta(minutes=5))
    theirs = await link.client.jetstream().key_value(unique)

    await ours.put("a", b"1")
    await ours.delete("a")

    status = await theirs.status()
    assert (status.history, status.ttl) == (2, 300)
    assert [entry.operation for entry in await theirs.history("a")] == [None, "DEL"]


class TestWhenTheAnswerWasLost:
    async def test_a_write_that_took_effect_is_found(self, link: Link, unique: str) -> None:
        bucket = await bucket_of(link, unique)
        first = await revision_of(bucket.put("k", b"old"))
        second = await revision_of(bucket.update("k", b"mine", first))  # and its answer is lost

        outcome = await bucket.settle_unknown("k", b"mine", revision=first)

        assert outcome == Stored(second, False, bucket.stream)

    async def test_a_write_that_never_arrived_is_made(self, link: Link, unique: str) -> None:
        bucket = await bucket_of(link, unique)
        first = await revision_of(bucket.put("k", b"old"))

        outcome = await bucket.settle_unknown("k", b"mine", revision=first)

        assert isinstance(outcome, Stored) and outcome.seq > first

    async def test_what_another_wrote_since_is_never_overwritten(
        self, link: Link, unique: str
    ) -> None:
        bucket = await bucket_of(link, unique)
        first = await revision_of(bucket.put("k", b"old"))
        await bucket.update("k", b"theirs", first)

        outcome = await bucket.settle_unknown("k", b"mine", revision=first)

        assert isinstance(outcome, Refused) and outcome.is_conflict
        entry = await bucket.get("k", leader=True)
        assert entry is not None and entry.value == b"theirs"

    async def test_a_frozen_server_makes_it_unknown_and_settling_finds_out(
        self, fresh_nats: EmbeddedNats
    ) -> None:
        options = NatsOptions.from_url(fresh_nats.url, request_timeout=timedelta(seconds=0.5))
        link = await Link.open(options)
        bucket = await Bucket.open(link, "jobs", BucketConfig())
        bucket.write_timeout = 0.2

        fresh_nats.pause()
        outcome = await bucket.create("k", b"mine")
        assert isinstance(outcome, Unknown)
        assert isinstance(await bucket.settle_unknown("k", b"mine", revision=0, tries=1), Unknown)
        fresh_nats.resume()

        settled = await bucket.settle_unknown("k", b"mine", revision=0)
        assert isinstance(settled, Stored)
        status = await bucket.status()
        assert (status.records, status.last_revision) == (1, 1)  # written once, not twice
        await link.close(drain=False)
