"""Pulling: what is asked for comes at once, nothing else is held, and nothing is lost."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from penstock.broker.embedded import EmbeddedNats
from penstock.broker.errors import BadSubject, ConsumerGone, LinkClosed, PullRefused
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.broker.puller import Puller

from .conftest import OpenLink, a_consumer, a_stream, api, pending_in

pytestmark = pytest.mark.usefixtures("link_kind")

LONG = 20.0  # seconds to wait for what will come
SHORT = 0.1  # seconds to wait for what will not


async def put(link: Link, stream: str, *texts: str) -> None:
    for text in texts:
        await link.request(f"{stream}.a".encode(), text.encode())


def texts(messages: list[Message]) -> list[str]:
    return [message.payload.decode() for message in messages]


async def waiting_at(link: Link, stream: str) -> tuple[int, int]:
    """Messages nobody has, and messages handed out without an answer yet."""
    info = await api(link, f"CONSUMER.INFO.{stream}.c")
    return info["num_pending"], info["num_ack_pending"]


async def test_what_is_there_comes_at_once_and_no_more_than_asked_for(
    open_link: OpenLink, unique: str
) -> None:
    link = await open_link()
    stream = await a_stream(link, unique)
    await put(link, stream, "1", "2", "3", "4", "5")
    puller = await Puller.open(link, stream, "c")

    assert texts(await puller.fetch(2, LONG)) == ["1", "2"]
    assert puller.buffered == 0
    assert await waiting_at(link, stream) == (3, 2)
    assert texts(await puller.fetch(9, LONG)) == ["3", "4", "5"]


async def test_a_fetch_waits_for_the_first_message(open_link: OpenLink, unique: str) -> None:
    link = await open_link()
    stream = await a_stream(link, unique)
    puller = await Puller.open(link, stream, "c")

    fetching = asyncio.create_task(puller.fetch(10, LONG))
    while (await api(link, f"CONSUMER.INFO.{stream}.c"))["num_waiting"] == 0:
        await asyncio.sleep(0)
    assert not fetching.done()
    await put(link, stream, "late")

    assert texts(await fetching) == ["late"]


async def test_nothing_to_fetch_is_an_empty_list(open_link: OpenLink, unique: str) -> None:
    link = await open_link()
    stream = await a_stream(link, unique)
    puller = await Puller.open(link, stream, "c")

    assert await puller.fetch(10, SHORT) == []
    assert await puller.fetch(10, 0) == []


async def test_a_cancelled_fetch_leaves_its_messages_to_the_next(
    open_link: OpenLink, unique: str
) -> None:
    link = await open_link()
    stream = await a_stream(link, unique)
    puller = await Puller.open(link, stream, "c")
    fetching = asyncio.create_task(puller.fetch(1, LONG))
    while (await api(link, f"CONSUMER.INFO.{stream}.c"))["num_waiting"] == 0:
        await asyncio.sleep(0)

    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    await put(link, stream, "kept")

    assert texts(await puller.fetch(1, LONG)) == ["kept"]


async def test_a_puller_serves_one_fetch_at_a_time(open_link: OpenLink, unique: str) -> None:
    link = await open_link()
    puller = await Puller.open(link, await a_stream(link, unique), "c")
    fetching = asyncio.create_task(puller.fetch(1, LONG))
    while (await api(link, f"CONSUMER.INFO.{unique}.c"))["num_waiting"] == 0:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="one fetch"):
        await puller.fetch(1, SHORT)

    fetching.cancel()


async def test_with_ahead_the_next_pull_is_under_way_before_it_is_asked_for(
    open_link: OpenLink, unique: str
) -> None:
    link = await open_link()
    stream = await a_stream(link, unique)
    await put(link, stream, "1", "2", "3", "4", "5", "6")
    puller = await Puller.open(link, stream, "c", ahead=3)

    assert texts(await puller.fetch(2, LONG)) == ["1", "2"]
    while puller.buffered < 3:
        await link.flush()
    assert puller.buffered == 3
    assert texts(await puller.fetch(9, LONG)) == ["3", "4", "5"]


async def test_what_was_pulled_ahead_is_given_back_by_stop(
    open_link: OpenLink, unique: str
) -> None:
    link = await open_link()
    stream = await a_stream(link, unique)
    await put(link, stream, "1", "2", "3")
    puller = await Puller.open(link, stream, "c", ahead=5)
    (first,) = await puller.fetch(1, LONG)
    first.ack()
    while puller.buffered < 2:
        await link.flush()

    await puller.stop()
    await puller.stop()  # safe to repeat

    again = await (await Puller.open(link, stream, "c")).fetch(9, LONG)
    assert texts(again) == ["2", "3"]
    assert [message.delivered for message in again] == [2, 2]
    with pytest.raises(LinkClosed):
        await puller.fetch(1, SHORT)


async def test_a_consumer_that_goes_under_a_waiting_fetch_is_named(
    open_link: OpenLink, unique: str
) -> None:
    link = await open_link()
    stream = await a_stream(link, unique)
    puller = await Puller.open(link, stream, "c")
    fetching = asyncio.create_task(puller.fetch(1, LONG))
    while (await api(link, f"CONSUMER.INFO.{stream}.c"))["num_waiting"] == 0:
        await asyncio.sleep(0)

    await api(link, f"CONSUMER.DELETE.{stream}.c")
    with pytest.raises(ConsumerGone, match="'c' of stream"):
        await fetching
    with pytest.raises(ConsumerGone):  # and one that is not there from the start
        await puller.fetch(1, LONG)

    await a_consumer(link, stream)
    await put(link, stream, "after")
    assert texts(await puller.fetch(1, LONG)) == ["after"]


async def test_a_pull_that_the_consumer_forbids_says_why(open_link: OpenLink, unique: str) -> None:
    link = await open_link()
    stream = await a_stream(link, unique)
    await api(link, f"CONSUMER.DELETE.{stream}.c")
    await a_consumer(link, stream, max_batch=5)
    puller = await Puller.open(link, stream, "c")

    with pytest.raises(PullRefused, match="409"):
        await puller.fetch(6, LONG)


async def test_a_fetch_outlives_the_server(fresh_nats: EmbeddedNats, open_link: OpenLink) -> None:
    link = await open_link(fresh_nats.url, reconnect_wait=timedelta(milliseconds=50))
    back = asyncio.Event()
    link.on_reconnect(back.set)
    stream = await a_stream(link, "jobs")
    puller = await Puller.open(link, stream, "c")
    fetching = asyncio.create_task(puller.fetch(1, LONG))
    while (await api(link, f"CONSUMER.INFO.{stream}.c"))["num_waiting"] == 0:
        await asyncio.sleep(0)

    fresh_nats.kill()
    fresh_nats.restart()
    await asyncio.wait_for(back.wait(), LONG)
    await put(link, stream, "after the crash")

    assert texts(await fetching) == ["after the crash"]


async def test_a_closed_link_ends_a_fetch(open_link: OpenLink, unique: str) -> None:
    link = await open_link()
    puller = await Puller.open(link, await a_stream(link, unique), "c")
    fetching = asyncio.create_task(puller.fetch(1, LONG))
    while (await api(link, f"CONSUMER.INFO.{unique}.c"))["num_waiting"] == 0:
        await asyncio.sleep(0)

    await link.close(drain=False)

    with pytest.raises(LinkClosed):
        await fetching


@pytest.mark.parametrize(("stream", "consumer"), [("a.b", "c"), ("a", "c d"), ("", "c"), ("a", "")])
async def test_names_that_would_break_a_subject_are_refused(
    open_link: OpenLink, stream: str, consumer: str
) -> None:
    link = await open_link()

    with pytest.raises(BadSubject):
        await Puller.open(link, stream, consumer)


async def test_thousands_of_messages_each_come_exactly_once(
    open_link: OpenLink, unique: str
) -> None:
    link = await open_link()
    stream = await a_stream(link, unique)
    asked = [link.request(f"{stream}.a".encode(), b"%d" % n, timeout=60) for n in range(5_000)]
    await asyncio.gather(*asked)
    pullers = [await Puller.open(link, stream, "c", ahead=ahead) for ahead in (0, 64)]
    seen: list[int] = []

    async def drain(puller: Puller) -> None:
        while batch := await puller.fetch(50, 1.0):
            seen.extend(int(message.payload) for message in batch)
            assert all(message.ack() for message in batch)

    await asyncio.gather(*map(drain, pullers))

    assert sorted(seen) == list(range(5_000))
    await link.flush()
    assert await pending_in(link, stream) == 0
