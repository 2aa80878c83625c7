"""What a link promises, on both kinds of link and a real server."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from datetime import timedelta
from typing import Any

import pytest

from penstock.broker.embedded import EmbeddedNats
from penstock.broker.errors import (
    BadSubject,
    LinkBusy,
    LinkClosed,
    NoResponders,
    PayloadTooLarge,
    RequestTimeout,
    Unreachable,
)
from penstock.broker.link import Link, NatsOptions, Reply, header_lines, parse_headers

from .conftest import OpenLink

pytestmark = pytest.mark.usefixtures("link_kind")

Heard = tuple[bytes, bytes | None, bytes | None, bytes]


class Ear:
    """A handler that can be waited for."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[Heard] = asyncio.Queue()

    def __call__(
        self, subject: bytes, reply: bytes | None, headers: bytes | None, payload: bytes
    ) -> None:
        self.heard.put_nowait((subject, reply, headers, payload))

    async def next(self) -> Heard:
        return await asyncio.wait_for(self.heard.get(), 10)

    async def take(self, many: int) -> list[bytes]:
        return [(await self.next())[3] for _ in range(many)]


async def an_echo(link: Link, subject: str, **options: Any) -> None:
    def answer(_: bytes, reply: bytes | None, headers: bytes | None, payload: bytes) -> None:
        assert reply is not None
        link.publish(reply, payload, headers=headers and headers[10:-2])

    await link.subscribe(subject, answer, **options)
    await link.flush()


async def test_an_answer_comes_with_payload_and_headers(open_link: OpenLink, unique: str) -> None:
    link = await open_link()
    await an_echo(link, unique)

    reply = await link.request(unique.encode(), b"ping", headers=header_lines({"A": "1"}))

    assert reply.payload == b"ping"
    assert parse_headers(reply.headers) == {"A": "1"}


async def test_a_thousand_questions_at_once_each_get_their_own_answer(
    open_link: OpenLink, unique: str
) -> None:
    link = await open_link()
    await an_echo(link, unique)

    futures = [link.request(unique.encode(), b"%d" % n) for n in range(1000)]

    assert [(await future).payload for future in futures] == [b"%d" % n for n in range(1000)]
    assert link.in_flight == 0


async def test_a_question_nobody_listens_to_fails_at_once(open_link: OpenLink, unique: str) -> None:
    link = await open_link()

    with pytest.raises(NoResponders, match=unique):
        await link.request(unique.encode(), timeout=60)


async def test_unanswered_questions_end_at_their_own_deadlines(
    open_link: OpenLink, unique: str
) -> None:
    link = await open_link()
    await link.subscribe(unique, Ear())
    clock = asyncio.get_running_loop().time
    began = clock()
    ended: dict[float, float] = {}

    async def ask(timeout: float) -> None:
        with pytest.raises(RequestTimeout, match=unique):
            await link.request(unique.encode(), timeout=timeout)
        ended[timeout] = clock() - began

    await asyncio.gather(ask(0.4), ask(0.05), ask(0.2))

    assert list(ended) == [0.05, 0.2, 0.4]
    assert all(took >= timeout for timeout, took in ended.items())
    assert link.in_flight == 0


async def test_a_blocked_loop_does_not_turn_received_answers_into_timeouts(
    open_link: OpenLink, unique: str
) -> None:
    link, other = await open_link(), await open_link()
    await an_echo(other, unique)
    held = threading.Event()

    future = link.request(unique.encode(), b"x", timeout=0.3)
    await link.flush()
    await other.flush()  # the answer is on its way to us
    held.wait(1.0)  # somebody blocks the event loop beyond the deadline

    assert (await future).payload == b"x"


async def test_over_the_cap_a_question_is_refused_and_room_waits(
    open_link: OpenLink, unique: str
) -> None:
    link = await open_link(max_in_flight=3)
    ear = Ear()
    await link.subscribe(unique, ear)
    waiting = [link.request(unique.encode(), timeout=30) for _ in range(3)]

    with pytest.raises(LinkBusy):
        link.request(unique.encode())
    room = asyncio.ensure_future(link.room())
    for _ in range(3):
        _, reply, _, _ = await ear.next()
        assert not room.done() or waiting[0].done()
        assert reply is not None
        link.publish(reply, b"ok")
    await asyncio.wait_for(room, 10)

    assert [(await future).payload for future in waiting] == [b"ok"] * 3


async def test_many_who_wait_for_room_all_get_through(open_link: OpenLink, unique: str) -> None:
    link = await open_link(max_in_flight=4)
    await an_echo(link, unique)

    async def ask(n: int) -> bytes:
        await link.room()
        return (await link.request(unique.encode(), b"%d" % n)).payload

    answers = await asyncio.wait_for(asyncio.gather(*map(ask, range(200))), 20)

    assert answers == [b"%d" % n for n in range(200)]


async def test_a_cancelled_wait_for_room_does_not_keep_others_waiting(
    open_link: OpenLink, unique: str
) -> None:
    link = await open_link(max_in_flight=1)
    ear = Ear()
    await link.subscribe(unique, ear)
    link.request(unique.encode(), timeout=30)
    first, second = (asyncio.ensure_future(link.room()) for _ in range(2))
    _, reply, _, _ = await ear.next()

    first.cancel()
    link.publish(reply or b"", b"ok")

    await asyncio.wait_for(second, 10)


async def test_members_of_a_queue_share_what_others_each_hear(
    open_link: OpenLink, unique: str
) -> None:
    link = await open_link()
    ann, bob, everyone = Ear(), Ear(), Ear()
    await link.subscribe(unique, ann, queue="team")
    await link.subscribe(unique, bob, queue="team")
    await link.subscribe(unique, everyone)

    for n in range(50):
        link.publish(unique.encode(), b"%d" % n)

    assert await everyone.take(50) == [b"%d" % n for n in range(50)]
    await link.flush()
    assert ann.heard.qsize() + bob.heard.qsize() == 50


async def test_a_publish_may_name_a_reply_subject(open_link: OpenLink, unique: str) -> None:
    link = await open_link()
    ear = Ear()
    await link.subscribe(f"{unique}.*", ear)

    link.publish(f"{unique}.a".encode(), b"x", reply=b"somewhere.else")

    assert await ear.next() == (f"{unique}.a".encode(), b"somewhere.else", None, b"x")


async def test_a_flush_means_that_the_server_has_seen_it_all(
    open_link: OpenLink, unique: str
) -> None:
    link, other = await open_link(), await open_link()
    ear = Ear()
    await other.subscribe(unique, ear)
    await other.flush()

    for _ in range(500):
        link.publish(unique.encode(), b"x" * 1000)
    await link.flush()
    await other.flush()

    await asyncio.sleep(0)  # the plain link hands over in its own task
    assert len(await ear.take(500)) == 500


async def test_an_unsubscribed_handler_hears_nothing_more(open_link: OpenLink, unique: str) -> None:
    link = await open_link()
    ear = Ear()
    subscription = await link.subscribe(unique, ear)

    await subscription.unsubscribe()
    await subscription.unsubscribe()

    with pytest.raises(NoResponders):
        await link.request(unique.encode())
    assert ear.heard.empty()


async def test_a_drained_subscription_hears_everything_sent_before(
    open_link: OpenLink, unique: str
) -> None:
    link, other = await open_link(), await open_link()
    ear = Ear()
    subscription = await link.subscribe(unique, ear)
    await link.flush()
    for _ in range(300):
        other.publish(unique.encode(), b"x")
    await other.flush()

    await subscription.drain()

    assert ear.heard.qsize() == 300


async def test_a_failing_handler_is_reported_and_the_next_message_is_heard(
    open_link: OpenLink, unique: str
) -> None:
    link = await open_link()
    faults: asyncio.Queue[Exception] = asyncio.Queue()
    link.on_error(faults.put_nowait)
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    def picky(subject: bytes, reply: bytes | None, headers: bytes | None, payload: bytes) -> None:
        if payload == b"bad":
            raise ValueError("bad")
        heard.put_nowait(payload)

    await link.subscribe(unique, picky)
    link.publish(unique.encode(), b"bad")
    link.publish(unique.encode(), b"good")

    assert await asyncio.wait_for(heard.get(), 10) == b"good"
    assert str(await asyncio.wait_for(faults.get(), 10)) == "bad"


@pytest.mark.parametrize("size", [0, 1, 32_767, 32_768, 65_536, 300_000])
@pytest.mark.parametrize("headers", [None, b"A: 1\r\n"])
async def test_messages_of_any_size_arrive_whole(
    open_link: OpenLink, unique: str, size: int, headers: bytes | None
) -> None:
    link = await open_link()
    await an_echo(link, unique)
    body = bytes(n % 251 for n in range(size))

    reply = await link.request(unique.encode(), body, headers=headers)

    assert reply.payload == body
    assert parse_headers(reply.headers) == ({"A": "1"} if headers else {})


async def test_a_message_the_server_would_refuse_is_refused_before_it_is_sent(
    open_link: OpenLink, unique: str
) -> None:
    link = await open_link()
    await an_echo(link, unique)

    for headers in (None, b"A: 1\r\n"):
        with pytest.raises(PayloadTooLarge, match=str(link.max_payload)):
            link.request(unique.encode(), b"x" * (link.max_payload + 1), headers=headers)
    with pytest.raises(PayloadTooLarge):  # headers count
        link.publish(unique.encode(), b"x" * (link.max_payload - 17), headers=b"A: 1\r\n")

    largest = b"x" * (link.max_payload - 18)
    reply = await link.request(unique.encode(), largest, headers=b"A: 1\r\n")
    assert len(reply.payload) == len(largest)
    assert link.stats.reconnects == 0


@pytest.mark.parametrize("subject", [b"", b"a b", b"a\r\nPUB x 0\r\n", b" a", b"a ", b"a\tb"])
async def test_a_subject_that_would_break_the_protocol_is_refused(
    open_link: OpenLink, subject: bytes
) -> None:
    link = await open_link()

    with pytest.raises(BadSubject):
        link.publish(subject, b"")
    with pytest.raises(BadSubject):
        await link.subscribe(subject.decode(), Ear())
    with pytest.raises(BadSubject):
        link.publish(b"a", b"", reply=subject or b" ")


async def test_closing_ends_what_is_being_asked_and_refuses_what_follows(
    open_link: OpenLink, unique: str
) -> None:
    link = await open_link()
    await link.subscribe(unique, Ear())
    asked = link.request(unique.encode(), timeout=60)

    await link.close()
    await link.close()

    with pytest.raises(LinkClosed):
        await asked
    with pytest.raises(LinkClosed):
        link.publish(b"a")
    with pytest.raises(LinkClosed):
        await link.room()
    with pytest.raises(LinkClosed):
        await link.flush()
    with pytest.raises(LinkClosed):
        await link.subscribe("a", Ear())
    assert link.closed
    assert not link.is_connected


async def test_closing_sends_what_was_published_before(open_link: OpenLink, unique: str) -> None:
    link, other = await open_link(), await open_link()
    ear = Ear()
    await other.subscribe(unique, ear)
    await other.flush()

    for n in range(100):
        link.publish(unique.encode(), b"%d" % n)
    await link.close()

    assert await ear.take(100) == [b"%d" % n for n in range(100)]


async def test_a_close_wakes_those_who_wait_for_room(open_link: OpenLink, unique: str) -> None:
    link = await open_link(max_in_flight=1)
    await link.subscribe(unique, Ear())
    asked = link.request(unique.encode(), timeout=60)
    room = asyncio.ensure_future(link.room())
    await link.flush()

    await link.close()

    with pytest.raises(LinkClosed):
        await asyncio.wait_for(room, 10)
    with contextlib.suppress(LinkClosed):
        await asked


async def test_stats_count_what_went_through(open_link: OpenLink, unique: str) -> None:
    link = await open_link()
    await an_echo(link, unique)
    before = link.stats

    await asyncio.gather(*(link.request(unique.encode(), b"x" * 100) for _ in range(10)))
    after = link.stats

    assert after.messages_out - before.messages_out == 20  # ten questions, ten echoes
    assert after.messages_in - before.messages_in == 20
    assert after.bytes_out - before.bytes_out >= 2000
    assert (after.in_flight, after.reconnects) == (0, 0)


async def test_no_server_is_one_clear_sentence() -> None:
    options = NatsOptions.from_url("nats://127.0.0.1:1", connect_timeout=timedelta(seconds=2))

    with pytest.raises(Unreachable) as caught:
        await Link.open(options)

    assert "127.0.0.1:1" in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.remedy


async def test_something_that_is_no_nats_server_is_one_clear_sentence() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Exception, match=f"127.0.0.1:{port}"):
            await Link.open(NatsOptions.from_url(f"127.0.0.1:{port}"))


async def test_a_dead_server_in_the_list_is_passed_over(
    nats_server: EmbeddedNats, open_link: OpenLink
) -> None:
    link = await open_link(f"nats://127.0.0.1:1,127.0.0.1:{nats_server.port}")

    assert link.is_connected


def test_two_event_loops_in_one_process_have_a_link_each(
    nats_server: EmbeddedNats, unique: str
) -> None:
    answers: dict[str, bytes] = {}

    async def serve_and_ask(me: str) -> None:
        link = await Link.open(NatsOptions.from_url(nats_server.url))
        await an_echo(link, f"{unique}.{me}")
        replies = [await link.request(f"{unique}.{me}".encode(), me.encode()) for _ in range(50)]
        answers[me] = replies[-1].payload
        await link.close()

    threads = [
        threading.Thread(target=lambda me=me: asyncio.run(serve_and_ask(me))) for me in ("a", "b")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert answers == {"a": b"a", "b": b"b"}


OTHER_PROCESS = """
import asyncio, sys
from penstock.broker.link import Link, NatsOptions
async def main(url, subject):
    link = await Link.open(NatsOptions.from_url(url))
    print((await link.request(subject.encode(), b"from afar")).payload.decode())
    await link.close()
asyncio.run(main(*sys.argv[1:]))
"""


async def test_another_process_is_answered(
    nats_server: EmbeddedNats, open_link: OpenLink, unique: str
) -> None:
    link = await open_link()
    await an_echo(link, unique)

    command = [sys.executable, "-c", OTHER_PROCESS, nats_server.url, unique]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout.strip() == "from afar"
    assert done.stderr == ""


async def test_a_reply_is_a_plain_pair(open_link: OpenLink, unique: str) -> None:
    link = await open_link()
    await an_echo(link, unique)

    headers, payload = await link.request(unique.encode(), b"x")

    assert (headers, payload) == Reply(None, b"x")
