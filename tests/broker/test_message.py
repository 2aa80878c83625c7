"""One message, one final answer, and what the broker makes of each."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from penstock.broker.embedded import EmbeddedNats
from penstock.broker.link import Link
from penstock.broker.message import Message, parse_ack_subject
from penstock.broker.puller import Puller

from .conftest import OpenLink, a_consumer, a_stream, api, pending_in

LONG = 20.0
SHORT = 0.2


async def a_message(link: Link, stream: str, puller: Puller) -> Message:
    await link.request(f"{stream}.a".encode(), b"job")
    (message,) = await puller.fetch(1, LONG)
    return message


async def test_an_acked_message_leaves_the_queue(link: Link, unique: str) -> None:
    stream = await a_stream(link, unique)
    puller = await Puller.open(link, stream, "c")
    message = await a_message(link, stream, puller)

    assert message.ack()

    await link.flush()
    assert message.settled
    assert await pending_in(link, stream) == 0


async def test_a_message_given_back_comes_again_and_says_so(link: Link, unique: str) -> None:
    stream = await a_stream(link, unique)
    puller = await Puller.open(link, stream, "c")
    message = await a_message(link, stream, puller)

    message.nak()
    (again,) = await puller.fetch(1, LONG)

    assert (message.delivered, again.delivered) == (1, 2)
    assert again.stream_seq == message.stream_seq
    assert (again.stream, again.consumer) == (stream, "c")


async def test_a_message_given_back_with_a_delay_waits_that_long(link: Link, unique: str) -> None:
    stream = await a_stream(link, unique)
    puller = await Puller.open(link, stream, "c")
    message = await a_message(link, stream, puller)

    message.nak(timedelta(seconds=3))

    assert await puller.fetch(1, SHORT) == []
    (again,) = await puller.fetch(1, LONG)
    assert again.delivered == 2


async def test_a_terminated_message_never_comes_again(link: Link, unique: str) -> None:
    stream = await a_stream(link, unique)
    puller = await Puller.open(link, stream, "c")
    message = await a_message(link, stream, puller)

    message.term("two\r\nlines of\treason")
    await link.flush()

    assert await pending_in(link, stream) == 0


async def test_progress_keeps_a_message_from_others(link: Link, unique: str) -> None:
    stream = await a_stream(link, unique)
    await api(link, f"CONSUMER.DELETE.{stream}.c")
    await a_consumer(link, stream, ack_wait=1_000_000_000)
    puller = await Puller.open(link, stream, "c")
    message = await a_message(link, stream, puller)

    for _ in range(4):
        assert message.progress()
        assert await puller.fetch(1, 0.5) == []
    (again,) = await puller.fetch(1, LONG)  # silent now: it comes to the next

    assert again.delivered == 2


@pytest.mark.parametrize(
    "say", [Message.ack, Message.nak, Message.term], ids=["ack", "nak", "term"]
)
async def test_only_the_first_final_answer_is_sent(
    link: Link, unique: str, say: Callable[[Message], bool]
) -> None:
    stream = await a_stream(link, unique)
    message = await a_message(link, stream, await Puller.open(link, stream, "c"))

    assert say(message)
    sent = link.messages_out

    assert not (message.ack() or message.nak() or message.term() or message.progress())
    assert not await message.ack_confirmed()
    assert link.messages_out == sent


async def test_a_confirmed_ack_has_taken_effect_when_it_returns(link: Link, unique: str) -> None:
    stream = await a_stream(link, unique)
    message = await a_message(link, stream, await Puller.open(link, stream, "c"))

    assert await message.ack_confirmed()

    assert await pending_in(link, stream) == 0


async def test_an_ack_nobody_confirms_may_be_tried_again(
    fresh_nats: EmbeddedNats, open_link: OpenLink
) -> None:
    link = await open_link(fresh_nats.url)
    stream = await a_stream(link, "jobs")
    message = await a_message(link, stream, await Puller.open(link, stream, "c"))
    fresh_nats.pause()

    assert not await message.ack_confirmed(timeout=0.2)
    assert not message.settled
    fresh_nats.resume()

    assert await message.ack_confirmed(timeout=LONG)


@pytest.mark.parametrize(
    ("subject", "domain"),
    [
        (b"$JS.ACK.s.c.2.30.4.1700000000000000000.5", ""),
        (b"$JS.ACK._.acc.s.c.2.30.4.1700000000000000000.5", ""),
        (b"$JS.ACK.hub.acc.s.c.2.30.4.1700000000000000000.5.tok", "hub"),
    ],
)
def test_every_form_of_an_ack_subject_is_read(subject: bytes, domain: str) -> None:
    read = parse_ack_subject(subject)

    assert (read.stream, read.consumer, read.domain) == ("s", "c", domain)
    assert (read.delivered, read.stream_seq, read.consumer_seq, read.pending) == (2, 30, 4, 5)
    assert read.stored_at_ns == 1_700_000_000_000_000_000


@pytest.mark.parametrize(
    "subject", [b"", b"$JS.ACK.s.c.2.3", b"a.b.c.d.1.2.3.4.5", b"$JS.ACK." + b"x." * 7]
)
def test_what_is_no_ack_subject_is_refused(subject: bytes) -> None:
    with pytest.raises(ValueError, match=r"ack|invalid"):
        parse_ack_subject(subject)
