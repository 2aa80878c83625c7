"""Ownership: one owner at a time, taken over when it dies or freezes, each under its own epoch."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import msgspec
import pytest

from penstock.broker.bucket import Bucket, BucketConfig
from penstock.broker.embedded import EmbeddedNats
from penstock.broker.link import Link
from penstock.broker.options import NatsOptions
from penstock.broker.ownership import NotOwner, Ownership
from penstock.core.errors import ConfigError

TERM = timedelta(seconds=0.6)


@pytest.fixture
async def bucket(link: Link, unique: str) -> Bucket:
    return await Bucket.open(link, unique, BucketConfig(storage="memory"))


@pytest.fixture
async def own_bucket(fresh_nats: EmbeddedNats) -> AsyncIterator[Bucket]:
    """A bucket on a server that may be frozen, over a link that is not patient."""
    options = NatsOptions.from_url(fresh_nats.url, request_timeout=timedelta(seconds=0.2))
    link = await Link.open(options)
    bucket = await Bucket.open(link, "owners", BucketConfig(storage="memory"))
    bucket.write_timeout = 0.1
    yield bucket
    await link.close(drain=False)


async def happens(event: asyncio.Event, within: float = 15.0) -> None:
    await asyncio.wait_for(event.wait(), within)


async def becomes(condition: Callable[[], bool], within: float = 15.0) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.005)


async def renewed(ownership: Ownership) -> None:
    """Wait for a renewal that the server confirmed: our time runs out later than before."""
    before = time.monotonic() + ownership.remaining
    await becomes(lambda: time.monotonic() + ownership.remaining > before + 0.1)


async def test_who_is_alone_owns_and_keeps_it(bucket: Bucket) -> None:
    async with Ownership(bucket, "q", "ann", TERM) as ann:
        await happens(ann.acquired)
        held_until = time.monotonic() + 3 * TERM.total_seconds()
        while time.monotonic() < held_until:
            assert ann.owned and ann.require() == 1 and ann.owner == "ann"
            await asyncio.sleep(0.05)
        assert not ann.lost.is_set()


async def test_of_two_contenders_only_one_owns(bucket: Bucket) -> None:
    async with (
        Ownership(bucket, "q", "ann", TERM) as ann,
        Ownership(bucket, "q", "bob", TERM) as bob,
    ):
        await becomes(lambda: ann.owned or bob.owned)
        owner, other = (ann, bob) if ann.owned else (bob, ann)
        until = time.monotonic() + 2 * TERM.total_seconds()
        while time.monotonic() < until:
            assert owner.owned and not other.owned
            await asyncio.sleep(0.02)

        assert other.owner == owner.owner
        with pytest.raises(NotOwner, match="does not own q"):
            other.require()


async def test_what_is_released_is_taken_at_once(bucket: Bucket) -> None:
    ann = Ownership(bucket, "q", "ann", timedelta(seconds=30))
    bob = Ownership(bucket, "q", "bob", timedelta(seconds=30))
    await ann.start()
    await happens(ann.acquired)
    await bob.start()
    await becomes(lambda: bob.owner == "ann")

    await ann.stop()

    await happens(bob.acquired, within=5)
    assert ann.lost.is_set() and not ann.owned
    assert (ann.epoch, bob.require()) == (1, 2)
    await bob.stop()
    await bob.stop()


async def test_a_stolen_record_is_noticed(bucket: Bucket) -> None:
    async with Ownership(bucket, "q", "ann", TERM) as ann:
        await happens(ann.acquired)
        await bucket.put("q", msgspec.json.encode({"holder": "eve", "epoch": 9, "term_ms": 600}))

        await happens(ann.lost)
        assert not ann.owned
        await happens(ann.acquired)  # eve never renews
        assert ann.require() == 10


@pytest.mark.parametrize("trouble", ["deleted", "purged", "garbage"])
async def test_the_epoch_grows_whatever_happens_to_the_record(bucket: Bucket, trouble: str) -> None:
    async with Ownership(bucket, "q", "ann", TERM) as ann:
        await happens(ann.acquired)
    assert ann.epoch == 1
    for _ in range(3):
        await bucket.put("other", b"x")

    if trouble == "deleted":
        await bucket.delete("q")
    elif trouble == "purged":
        await bucket.purge("q")
    else:
        await bucket.put("q", b"not json")

    async with Ownership(bucket, "q", "bob", TERM) as bob:
        await happens(bob.acquired)
        assert bob.epoch > ann.epoch


async def test_a_bucket_that_forgets_is_refused(link: Link, unique: str) -> None:
    config = BucketConfig(storage="memory", ttl=timedelta(minutes=5))
    forgetful = await Bucket.open(link, unique, config)
    with pytest.raises(ConfigError, match="forgets values"):
        Ownership(forgetful, "q", "ann")


async def test_cut_off_from_the_server_the_owner_stops_by_its_own_clock(
    own_bucket: Bucket, fresh_nats: EmbeddedNats
) -> None:
    async with Ownership(own_bucket, "q", "ann", TERM) as ann:
        await happens(ann.acquired)
        fresh_nats.pause()
        frozen_at = time.monotonic()

        await becomes(lambda: not ann.owned)
        assert time.monotonic() - frozen_at < 2 * TERM.total_seconds()
        await happens(ann.lost)

        fresh_nats.resume()
        await happens(ann.acquired)
        assert ann.require() > 1


async def test_renewals_whose_answers_are_lost_do_not_cost_the_ownership(
    own_bucket: Bucket, fresh_nats: EmbeddedNats
) -> None:
    async with Ownership(own_bucket, "q", "ann", timedelta(seconds=3)) as ann:
        await happens(ann.acquired)
        await renewed(ann)
        fresh_nats.pause()
        await becomes(lambda: ann.remaining < 1.5)  # the renewal at 2 s left was not answered
        fresh_nats.resume()

        await becomes(lambda: ann.remaining > 1.7)
        assert ann.require() == 1 and not ann.lost.is_set()


async def test_a_short_restart_of_the_server_does_not_cost_the_ownership(
    own_bucket: Bucket, fresh_nats: EmbeddedNats
) -> None:
    bucket = await Bucket.open(own_bucket.link, "kept", BucketConfig(storage="file"))
    bucket.write_timeout = 0.1
    async with Ownership(bucket, "q", "ann", timedelta(seconds=3)) as ann:
        await happens(ann.acquired)
        await asyncio.to_thread(fresh_nats.restart)

        await renewed(ann)
        assert ann.require() == 1 and not ann.lost.is_set()


async def test_under_random_comings_and_goings_there_are_never_two_owners(bucket: Bucket) -> None:
    dice = random.Random(7)
    contenders = [Ownership(bucket, "q", f"c{n}", timedelta(seconds=0.3)) for n in range(4)]
    epochs: list[int] = []
    done = asyncio.Event()

    async def look() -> None:
        while not done.is_set():
            owners = [contender for contender in contenders if contender.owned]
            assert len(owners) <= 1
            if owners and (not epochs or epochs[-1] != owners[0].epoch):
                epochs.append(owners[0].epoch)
            await asyncio.sleep(0.001)

    async def come_and_go(contender: Ownership) -> None:
        for _ in range(6):
            await contender.start()
            await asyncio.sleep(dice.uniform(0, 0.25))
            await contender.stop()

    looking = asyncio.create_task(look())
    await asyncio.gather(*(come_and_go(contender) for contender in contenders))
    done.set()
    await looking

    assert len(epochs) > 3
    assert epochs == sorted(set(epochs))


OWNER = """
import asyncio, sys
from datetime import timedelta
from penstock.broker.bucket import Bucket
from penstock.broker.link import Link
from penstock.broker.options import NatsOptions
from penstock.broker.ownership import Ownership

async def main(url, bucket):
    link = await Link.open(NatsOptions.from_url(url))
    owned = Ownership(await Bucket.open(link, bucket), "q", "ann", timedelta(seconds=0.6))
    await owned.start()
    await owned.acquired.wait()
    print("owns", owned.epoch, flush=True)
    loop = asyncio.get_running_loop()
    before = loop.time()
    while loop.time() - before < 0.5:  # until we were frozen for longer than a moment
        before = loop.time()
        await asyncio.sleep(0.01)
    print("owned after thaw:", owned.owned, flush=True)
    await owned.lost.wait()
    print("lost", owned.epoch, flush=True)
    await asyncio.sleep(60)

asyncio.run(main(*sys.argv[1:]))
"""


@contextmanager
def owner_process(url: str, bucket: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, url, bucket], stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), 20)).strip()


async def test_a_killed_owner_is_followed_within_its_term(
    bucket: Bucket, nats_server: EmbeddedNats
) -> None:
    with owner_process(nats_server.url, bucket.name) as ann:
        assert await said(ann) == "owns 1"
        async with Ownership(bucket, "q", "bob", TERM) as bob:
            await becomes(lambda: bob.owner == "ann")
            ann.kill()
            killed_at = time.monotonic()

            await happens(bob.acquired)

            waited = time.monotonic() - killed_at
            assert bob.require() == 2
            assert waited < 5  # 1.1 terms and a look at the record, on a busy machine


async def test_a_frozen_owner_wakes_up_without_its_ownership(
    bucket: Bucket, nats_server: EmbeddedNats
) -> None:
    with owner_process(nats_server.url, bucket.name) as ann:
        assert await said(ann) == "owns 1"
        async with Ownership(bucket, "q", "bob", TERM) as bob:
            await becomes(lambda: bob.owner == "ann")
            os.kill(ann.pid, signal.SIGSTOP)
            await happens(bob.acquired)
            assert bob.require() == 2

            os.kill(ann.pid, signal.SIGCONT)

            assert await said(ann) == "owned after thaw: False"
            assert await said(ann) == "lost 1"
            assert bob.require() == 2
            assert not bob.lost.is_set()
