"""Writing to streams: every answer is a value, and bulk writes stay within their window."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest

from penstock.broker.bulk import Failure, Outgoing
from penstock.broker.embedded import EmbeddedNats
from penstock.broker.errors import BadHeader, PayloadTooLarge
from penstock.broker.publisher import Publisher, Refused, Stored, Unknown
from penstock.broker.puller import Puller

from .conftest import OpenLink, a_stream, pending_in

pytestmark = pytest.mark.usefixtures("link_kind")


async def test_a_write_is_stored_under_its_sequence(open_link: OpenLink, unique: str) -> None:
    link = await open_link()
    publisher = Publisher(link)
    stream = await a_stream(link, unique)

    first = await publisher.publish(f"{stream}.a".encode(), b"1")
    second = await publisher.publish(f"{stream}.a".encode(), b"2")

    assert first == Stored(1, False, stream)
    assert second == Stored(2, False, stream)


async def test_a_message_id_is_stored_once(open_link: OpenLink, unique: str) -> None:
    link = await open_link()
    publisher = Publisher(link)
    stream = await a_stream(link, unique)

    for duplicate in (False, True):
        answer = await publisher.publish(f"{stream}.a".encode(), b"x", msg_id="job-1")
        assert answer == Stored(1, duplicate, stream)
    assert await pending_in(link, stream) == 1


async def test_of_two_who_expect_the_same_sequence_one_is_refused(
    open_link: OpenLink, unique: str
) -> None:
    link = await open_link()
    publisher = Publisher(link)
    subject = f"{await a_stream(link, unique)}.a".encode()

    answers = [publisher.publish(subject, text, expect_subject_seq=0) for text in (b"ann", b"bob")]
    won, lost = [await answer for answer in answers]

    assert isinstance(won, Stored)
    assert isinstance(lost, Refused)
    assert lost.is_conflict


async def test_a_subject_no_stream_takes_is_refused_at_once(
    open_link: OpenLink, unique: str
) -> None:
    link = await open_link()

    answer = await Publisher(link).publish(f"{unique}.nobody".encode(), b"x")

    assert isinstance(answer, Refused)
    assert answer.is_unheard
    assert not answer.is_conflict


async def test_a_write_without_an_answer_is_unknown(
    fresh_nats: EmbeddedNats, open_link: OpenLink
) -> None:
    link = await open_link(fresh_nats.url)
    stream = await a_stream(link, "jobs")
    publisher = Publisher(link, timeout=0.2)
    fresh_nats.pause()

    answer = await publisher.publish(f"{stream}.a".encode(), b"x")
    fresh_nats.resume()

    assert isinstance(answer, Unknown)
    await link.flush(20)
    assert await pending_in(link, stream) == 1  # it had arrived: Unknown is not "no"


@pytest.mark.parametrize("msg_id", ["", "two\r\nlines", "tab\there"])
async def test_an_id_that_would_break_the_header_is_refused(
    open_link: OpenLink, unique: str, msg_id: str
) -> None:
    link = await open_link()

    with pytest.raises(BadHeader):
        await Publisher(link).publish(unique.encode(), b"x", msg_id=msg_id)


async def test_a_bulk_write_keeps_the_order_and_never_leaves_its_window(
    open_link: OpenLink, unique: str
) -> None:
    link = await open_link()
    stream = await a_stream(link, unique)
    most = 0

    def messages() -> Iterator[Outgoing]:
        nonlocal most
        for n in range(3_000):
            most = max(most, link.in_flight)
            yield Outgoing(f"{stream}.a".encode(), b"%d" % n, msg_id=f"m{n}")

    report = await Publisher(link).publish_many(messages(), window=64)

    assert report.complete
    assert (report.stored, report.duplicates) == (3_000, 0)
    assert most <= 64
    puller = await Puller.open(link, stream, "c")
    assert [int(m.payload) for m in await puller.fetch(100, 20)] == list(range(100))


async def test_a_bulk_write_takes_what_comes_later(open_link: OpenLink, unique: str) -> None:
    link = await open_link()
    stream = await a_stream(link, unique)

    async def messages() -> AsyncIterator[Outgoing]:
        for n in range(10):
            await link.flush()
            yield Outgoing(f"{stream}.a".encode(), b"%d" % n, msg_id=f"m{n % 5}")

    report = await Publisher(link).publish_many(messages(), window=3)

    assert (report.stored, report.duplicates) == (10, 5)
    assert await pending_in(link, stream) == 5


async def test_each_message_that_was_not_stored_is_named(open_link: OpenLink, unique: str) -> None:
    link = await open_link()
    subject = f"{await a_stream(link, unique)}.a".encode()
    failures: list[Failure] = []
    no_stream, refused = f"{unique}-nobody.a".encode(), Refused(400, 0, "no number")
    messages = [
        Outgoing(subject, b"fine"),
        Outgoing(no_stream, b"x"),
        Outgoing(subject, b"x" * (link.max_payload + 1)),
        Outgoing(subject, b"fine too"),
        Outgoing(b"", b"", refusal=refused),
    ]

    report = await Publisher(link).publish_many(messages, on_failure=failures.append)

    assert (report.stored, report.refused, report.unknown) == (2, 3, 0)
    assert not report.complete
    assert [failure.index for failure in failures] == [1, 2, 4]
    assert failures[2].result is refused
    assert report.failures == failures
    with pytest.raises(PayloadTooLarge):  # one alone is told at once
        await Publisher(link).publish(subject, messages[2].payload)


async def test_only_what_carries_an_id_is_written_again_after_an_outage(
    fresh_nats: EmbeddedNats, open_link: OpenLink
) -> None:
    link = await open_link(
        fresh_nats.url,
        reconnect_wait=timedelta(milliseconds=50),
        request_timeout=timedelta(seconds=1),
    )
    stream = await a_stream(link, "jobs")
    subject = f"{stream}.a".encode()

    def messages() -> Iterator[Outgoing]:
        for n in range(400):
            if n == 200:
                fresh_nats.kill()
                fresh_nats.restart()
            yield Outgoing(subject, b"%d" % n, msg_id=f"m{n}" if n % 2 else None)

    report = await Publisher(link, timeout=2).publish_many(messages(), window=50)

    assert report.stored + report.unknown == 400
    assert all(failure.message.msg_id is None for failure in report.failures)
    stored = await pending_in(link, stream)
    assert report.stored <= stored <= 400  # nothing that was confirmed is missing, nothing twice
