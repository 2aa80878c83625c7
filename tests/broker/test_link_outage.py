"""Servers die, freeze and come back; a link loses no subscription and never waits for ever."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from penstock.broker import link as link_module
from penstock.broker.embedded import EmbeddedNats
from penstock.broker.errors import LinkBusy, LinkError, NoResponders, RequestTimeout
from penstock.broker.link import Link, NatsOptions

from .conftest import OpenLink

pytestmark = pytest.mark.usefixtures("link_kind")

QUICK = {"reconnect_wait": timedelta(milliseconds=50)}
BODY = b"x" * 10_000


class Changes:
    """The ups and downs of a link, to be waited for."""

    def __init__(self, link: Link) -> None:
        self.down, self.up = asyncio.Event(), asyncio.Event()
        link.on_disconnect(self.down.set)
        link.on_reconnect(self.up.set)

    async def lost(self) -> None:
        await asyncio.wait_for(self.down.wait(), 20)

    async def back(self) -> None:
        await asyncio.wait_for(self.up.wait(), 20)


async def an_echo(link: Link, subject: str) -> None:
    def answer(_: bytes, reply: bytes | None, __: bytes | None, payload: bytes) -> None:
        assert reply is not None
        link.publish(reply, payload)

    await link.subscribe(subject, answer)
    await link.flush()


async def test_a_killed_server_ends_what_was_asked_and_a_restart_serves_what_follows(
    fresh_nats: EmbeddedNats, open_link: OpenLink
) -> None:
    link = await open_link(fresh_nats.url, **QUICK)
    changes = Changes(link)
    await an_echo(link, "echo")
    await link.subscribe("silent", lambda *_: None)
    await link.flush()
    asked = [link.request(b"silent", timeout=1.5) for _ in range(200)]

    fresh_nats.kill()
    await changes.lost()
    assert not link.is_connected
    await asyncio.to_thread(fresh_nats.restart)
    await changes.back()

    assert (await link.request(b"echo", b"again", timeout=10)).payload == b"again"
    ended = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(result) for result in ended} <= {RequestTimeout}
    assert link.stats.reconnects == 1
    assert link.in_flight == 0


async def test_under_load_a_restart_costs_only_what_was_under_way(
    fresh_nats: EmbeddedNats, open_link: OpenLink
) -> None:
    link = await open_link(fresh_nats.url, max_in_flight=64, **QUICK)
    changes = Changes(link)
    await an_echo(link, "echo")
    answered, failed = [], []
    stop = asyncio.Event()

    async def ask_on_and_on() -> None:
        while not stop.is_set():
            await link.room()
            try:
                answered.append(await link.request(b"echo", timeout=1))
            except (RequestTimeout, NoResponders):
                failed.append(1)

    askers = [asyncio.create_task(ask_on_and_on()) for _ in range(32)]
    while len(answered) < 500:
        await asyncio.sleep(0.001)
    fresh_nats.kill()
    await changes.lost()
    await asyncio.to_thread(fresh_nats.restart)
    await changes.back()
    before = len(answered)
    while len(answered) < before + 500:
        await asyncio.sleep(0.001)
    stop.set()
    await asyncio.wait_for(asyncio.gather(*askers), 10)

    assert len(failed) <= 2 * 32  # one under way each, and a server not yet up


async def test_what_is_published_while_away_is_sent_after_the_reconnect(
    fresh_nats: EmbeddedNats, open_link: OpenLink
) -> None:
    link = await open_link(fresh_nats.url, **QUICK)
    changes = Changes(link)
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    await link.subscribe("s", lambda _s, _r, _h, payload: heard.put_nowait(payload))
    await link.flush()

    fresh_nats.kill()
    await changes.lost()
    for n in range(10):
        link.publish(b"s", b"%d" % n)
    flushed = asyncio.ensure_future(link.flush(30))
    await asyncio.to_thread(fresh_nats.restart)
    await changes.back()
    await flushed

    assert [await asyncio.wait_for(heard.get(), 10) for _ in range(10)] == [
        b"%d" % n for n in range(10)
    ]


async def test_while_away_pending_bytes_are_bounded(
    fresh_nats: EmbeddedNats, open_link: OpenLink
) -> None:
    link = await open_link(fresh_nats.url, max_pending_bytes=100_000, **QUICK)
    changes = Changes(link)
    fresh_nats.kill()
    await changes.lost()

    with pytest.raises(LinkBusy):
        for _ in range(100):
            link.publish(b"s", BODY)

    assert 200_000 <= link.stats.pending_bytes <= 230_000
    room = asyncio.ensure_future(link.room())
    await asyncio.to_thread(fresh_nats.restart)
    await changes.back()
    await asyncio.wait_for(room, 10)
    assert link.stats.pending_bytes < 100_000


async def test_a_frozen_server_holds_writers_back_and_memory_stays_bounded(
    fresh_nats: EmbeddedNats, open_link: OpenLink
) -> None:
    mark = 1 << 20
    link = await open_link(fresh_nats.url, max_pending_bytes=mark)
    changes = Changes(link)
    sent = 0

    async def write() -> None:
        nonlocal sent
        while True:
            await link.room()
            link.publish(b"sink", BODY)
            sent += 1
            if sent % 16 == 0:
                await asyncio.sleep(0)

    fresh_nats.pause()
    writer = asyncio.create_task(write())
    stuck_at = -1
    while stuck_at != sent:  # until two looks 0.3 s apart find it waiting at the same place
        stuck_at = sent
        await asyncio.sleep(0.3)
    assert not link.has_room
    assert mark <= link.stats.pending_bytes <= mark + 20 * len(BODY)
    assert sent * len(BODY) < 64 << 20  # what the kernel, the transport and we hold together

    fresh_nats.resume()
    while sent < stuck_at + 1000:
        await asyncio.sleep(0.01)
    writer.cancel()
    await asyncio.wait([writer])
    assert not changes.down.is_set()


async def test_a_link_to_a_frozen_server_still_closes(
    fresh_nats: EmbeddedNats, open_link: OpenLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "CLOSE_GRACE", 0.3)
    link = await open_link(fresh_nats.url)
    asked = link.request(b"$JS.API.INFO", timeout=60)
    await asked
    fresh_nats.pause()
    for _ in range(700):
        link.publish(b"sink", BODY)
    asked = link.request(b"$JS.API.INFO", timeout=60)

    await asyncio.wait_for(link.close(), 10)

    with pytest.raises(LinkError):
        await asked
    fresh_nats.resume()


async def test_a_server_that_stops_answering_is_left_for_one_that_does(
    nats_server: EmbeddedNats, fresh_nats: EmbeddedNats, open_link: OpenLink
) -> None:
    link = await open_link(fresh_nats.url, ping_interval=timedelta(milliseconds=100), **QUICK)
    changes = Changes(link)
    await an_echo(link, "echo.frozen")
    link.client.set_server_pool([nats_server.url])  # where the next connection goes
    fresh_nats.pause()
    for _ in range(700):  # more than any socket takes: a polite close would wait for ever
        link.publish(b"sink", BODY)

    await changes.back()

    assert (await link.request(b"echo.frozen", b"hi", timeout=10)).payload == b"hi"
    fresh_nats.resume()


async def test_a_reader_too_slow_for_the_server_is_cut_off_and_comes_back(
    open_link: OpenLink,
) -> None:
    with EmbeddedNats(config='write_deadline: "100ms"\nmax_pending: 1048576') as server:
        link = await open_link(server.url, **QUICK)
        changes = Changes(link)
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        await link.subscribe("s", lambda _s, _r, _h, payload: heard.put_nowait(payload[:5]))
        await link.flush()

        flood = threading.Thread(target=lambda: asyncio.run(publish_many(server.url, 6000)))
        flood.start()
        flood.join(30)  # our event loop is held up all the while
        await changes.back()

        link.publish(b"s", b"after")
        while await asyncio.wait_for(heard.get(), 10) != b"after":
            pass


async def publish_many(url: str, many: int) -> None:
    link = await Link.open(NatsOptions.from_url(url))
    for _ in range(many):
        await link.room()
        link.publish(b"s", BODY)
    await link.close()


async def test_an_error_that_ends_the_connection_does_not_end_the_link(
    fresh_nats: EmbeddedNats, open_link: OpenLink
) -> None:
    link = await open_link(fresh_nats.url, **QUICK)
    changes = Changes(link)
    faults: list[str] = []
    link.on_error(lambda error: faults.append(str(error)))
    await an_echo(link, "echo")

    transport = link.client._transport  # the only way to make the server angry: past all our checks
    transport.write(b"PUB s 99999999\r\n")
    await changes.back()

    assert (await link.request(b"echo", b"hi", timeout=10)).payload == b"hi"
    assert any("maximum payload" in fault for fault in faults)


def test_a_link_whose_server_died_with_words_unsent_is_closed_in_peace_under_uvloop(
    fresh_nats: EmbeddedNats,
) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def story() -> None:
        link = await Link.open(NatsOptions.from_url(fresh_nats.url, **QUICK))
        changes = Changes(link)
        fresh_nats.kill()
        await changes.lost()
        link.publish(b"said.too.late", b"x")
        await link.close()

        assert link.closed

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story())
