"""Followers: every record once and in order, even when some get lost on the way."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.follower import Follower
from penstock.broker.link import Link
from penstock.broker.publisher import Publisher, Stored
from penstock.broker.puller import Message
from penstock.broker.streams import ApiError, JetStream, StreamConfig


@pytest.fixture
async def stream(link: Link, unique: str) -> str:
    config = StreamConfig(name=unique, subjects=[f"{unique}.>"], storage="memory")
    await JetStream(link).ensure_stream(config)
    return unique


async def store(link: Link, stream: str, *numbers: int) -> None:
    for number in numbers:
        subject = f"{stream}.{number % 2}".encode()
        assert isinstance(await Publisher(link).publish(subject, b"%d" % number), Stored)


async def numbers_of(follower: Follower, count: int) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += [int(message.payload) for message in await follower.fetch(4, 5.0)]
    return found


@pytest.mark.parametrize(
    ("start", "expected"),
    [("all", [0, 1, 2, 3]), ("last_per_subject", [2, 3]), (3, [2, 3]), (0, [0, 1, 2, 3])],
)
async def test_it_starts_where_it_is_told(
    link: Link, stream: str, start: str | int, expected: list[int]
) -> None:
    await store(link, stream, 0, 1, 2, 3)
    follower = await Follower(link, stream, start=start).open()  # type: ignore[arg-type]

    assert await numbers_of(follower, len(expected)) == expected
    assert follower.caught_up and follower.position == 4
    await store(link, stream, 4)
    assert await numbers_of(follower, 1) == [4]
    await follower.stop()


async def test_new_means_after_it_was_opened(link: Link, stream: str) -> None:
    await store(link, stream, 0, 1)
    follower = await Follower(link, stream, start="new").open()
    assert follower.caught_up

    await store(link, stream, 2)

    assert await numbers_of(follower, 1) == [2]
    await follower.stop()


async def test_nothing_to_read_is_an_empty_list_after_the_wait(link: Link, stream: str) -> None:
    follower = await Follower(link, stream).open()
    assert await follower.fetch(10, 0.05) == []
    await follower.stop()
    assert await follower.fetch(10, 5) == []


@pytest.mark.parametrize("lost", [0, 1, 3])
async def test_a_record_lost_on_the_way_is_asked_for_again(
    link: Link, stream: str, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store(link, stream, *range(10))
    follower = await Follower(link, stream).open()
    puller = follower._puller
    assert puller is not None
    fetch = puller.fetch

    async def lossy(most: int, wait: float) -> list[Message]:
        batch = await fetch(most, wait)
        del batch[lost]
        return batch

    monkeypatch.setattr(puller, "fetch", lossy)

    assert await numbers_of(follower, 10) == list(range(10))
    await follower.stop()


async def test_records_deleted_while_it_catches_up_are_not_waited_for(
    link: Link, stream: str
) -> None:
    await store(link, stream, *range(6))
    follower = await Follower(link, stream).open()
    assert await numbers_of(follower, 4) == [0, 1, 2, 3]
    await JetStream(link).purge(stream)
    async with asyncio.timeout(20):
        while not follower.caught_up:
            assert await follower.fetch(4, 1.0) == []
    await follower.stop()


async def test_a_stream_that_is_not_there_is_named(link: Link, unique: str) -> None:
    with pytest.raises(ApiError, match="stream not found"):
        await Follower(link, unique).open()


async def test_headers_alone_can_be_followed(link: Link, stream: str) -> None:
    await store(link, stream, 1)
    follower = await Follower(link, stream, headers_only=True).open()
    (message,) = await follower.fetch(1, 5)
    assert message.payload == b"" and message.headers is not None
    await follower.stop()
