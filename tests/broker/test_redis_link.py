"""The lean connections: matched answers, honest losses, and mending by themselves."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.broker.redis_link import RedisLink
from penstock.broker.redis_port import RedisClosed, RedisLost, RedisTarget, RedisUnreachable
from penstock.broker.redis_sync import SyncRedisLink
from penstock.broker.resp import RedisRefused
from penstock.core.errors import ConfigError


@pytest.fixture
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(aof="always") as running:
        yield running


@pytest.fixture
async def link(server: EmbeddedRedis) -> AsyncIterator[RedisLink]:
    opened = RedisLink(server.url, timeout=20)
    yield opened
    await opened.aclose()


async def test_many_callers_share_one_connection_and_get_their_own_answers(link: RedisLink) -> None:
    answers = await asyncio.gather(*(link.execute("ECHO", f"{n}") for n in range(500)))

    assert answers == [f"{n}".encode() for n in range(500)]


async def test_a_refusal_is_its_callers_alone(link: RedisLink) -> None:
    replies = await link.pipeline([("SET", "a", "1"), ("LPOP", "a"), ("GET", "a")])

    assert replies[0] == b"OK"
    assert isinstance(replies[1], RedisRefused)
    assert replies[1].kind == "WRONGTYPE"
    assert replies[2] == b"1"
    with pytest.raises(RedisRefused, match="WRONGTYPE"):
        await link.execute("LPOP", "a")


async def test_all_keys_are_walked(link: RedisLink) -> None:
    await link.pipeline([("SET", f"k{n}", "") for n in range(3000)])

    found = {key async for key in link.scan("k*")}

    assert len(found) == 3000


async def test_after_a_restart_it_goes_on_by_itself(link: RedisLink, server: EmbeddedRedis) -> None:
    await link.execute("SET", "a", "1")

    await asyncio.to_thread(server.restart)

    async with asyncio.timeout(30):
        while True:
            try:
                assert await link.execute("GET", "a") == b"1"
                break
            except RedisLost:  # sent on the old connection at its last moment
                continue
    assert link.reconnects == 1


async def test_what_was_sent_when_it_broke_is_lost_and_told_never_repeated(
    link: RedisLink, server: EmbeddedRedis
) -> None:
    await link.execute("SET", "a", "0")
    server.pause()
    unanswered = [asyncio.create_task(link.execute("INCR", "a")) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    await asyncio.to_thread(server.kill)

    for task in unanswered:
        with pytest.raises(RedisLost):
            await task
    await asyncio.to_thread(server.restart)
    assert int(bytes(await link.execute("GET", "a"))) in (0, 3)  # type: ignore[call-overload]


async def test_a_server_that_falls_silent_is_given_up(server: EmbeddedRedis) -> None:
    link = RedisLink(server.url, timeout=0.3)
    await link.execute("PING")
    server.pause()
    try:
        with pytest.raises(RedisLost, match="did not answer"):
            await link.execute("PING")
    finally:
        server.resume()
        await link.aclose()


async def test_nobody_there_is_told_within_the_time_given() -> None:
    link = RedisLink(f"redis://127.0.0.1:{unused_port()}", timeout=0.3)

    with pytest.raises(RedisUnreachable, match="no Redis answered"):
        await link.execute("PING")
    await link.aclose()


async def test_it_waits_for_a_server_that_is_about_to_come() -> None:
    server = EmbeddedRedis(port=unused_port())
    link = RedisLink(f"redis://127.0.0.1:{server.port}", timeout=30)
    asked = asyncio.create_task(link.execute("PING"))
    await asyncio.sleep(0)

    await asyncio.to_thread(server.start)

    assert await asked == b"PONG"
    await link.aclose()
    await asyncio.to_thread(server.stop)


async def test_a_replica_is_left_for_whoever_answers_next(
    link: RedisLink, server: EmbeddedRedis
) -> None:
    await link.execute("SET", "a", "1")
    with EmbeddedRedis() as primary:
        await link.execute("REPLICAOF", "127.0.0.1", primary.port)

        with pytest.raises(RedisRefused, match="READONLY"):
            await link.execute("SET", "a", "2")

        assert await link.execute("PING") == b"PONG"
        assert link.reconnects == 1  # by name, so a failover that moved the name is found


async def test_a_wrong_password_is_told_at_once_and_not_tried_again() -> None:
    with EmbeddedRedis() as guarded:
        port = guarded.port
        open_door = SyncRedisLink(guarded.url)
        open_door.execute("CONFIG", "SET", "requirepass", "secret")
        open_door.close()
        right = RedisLink(f"redis://:secret@127.0.0.1:{port}/3")
        wrong = RedisLink(f"redis://:guess@127.0.0.1:{port}")
        try:
            assert await right.execute("SET", "a", "1") == b"OK"
            with pytest.raises(RedisRefused, match="WRONGPASS"):
                await wrong.execute("PING")
        finally:
            await right.aclose()
            await wrong.aclose()


async def test_a_closed_link_says_so(link: RedisLink) -> None:
    await link.execute("PING")
    await link.aclose()
    await link.aclose()

    with pytest.raises(RedisClosed):
        await link.execute("PING")


async def test_no_more_is_in_flight_than_allowed(server: EmbeddedRedis) -> None:
    link = RedisLink(server.url, max_in_flight=4)

    answers = await asyncio.gather(*(link.execute("INCR", "n") for _ in range(100)))

    assert sorted(answers) == list(range(1, 101))  # type: ignore[type-var]
    await link.aclose()


# For threads ----------------------------------------------------------------------------


@pytest.fixture
def sync_link(server: EmbeddedRedis) -> Iterator[SyncRedisLink]:
    opened = SyncRedisLink(server.url, timeout=20)
    yield opened
    opened.close()


def test_threads_get_their_own_answers(sync_link: SyncRedisLink) -> None:
    wrong: list[Any] = []

    def ask(me: int) -> None:
        for n in range(100):
            if sync_link.execute("ECHO", f"{me}:{n}") != f"{me}:{n}".encode():
                wrong.append((me, n))

    threads = [threading.Thread(target=ask, args=(me,)) for me in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


def test_a_connection_that_broke_unused_is_replaced_unseen(
    sync_link: SyncRedisLink, server: EmbeddedRedis
) -> None:
    sync_link.execute("SET", "a", "1")

    server.restart()

    assert sync_link.execute("GET", "a") == b"1"


def test_silence_ends_the_connection_it_came_from(server: EmbeddedRedis) -> None:
    link = SyncRedisLink(server.url, timeout=0.3)
    link.execute("SET", "a", "1")
    server.pause()
    try:
        with pytest.raises(RedisLost):
            link.execute("GET", "a")
    finally:
        server.resume()

    assert link.execute("ECHO", "mine") == b"mine"  # not the late answer to the one before
    link.close()


def test_refusals_and_closing_are_as_for_asyncio(sync_link: SyncRedisLink) -> None:
    sync_link.execute("SET", "a", "1")
    with pytest.raises(RedisRefused, match="WRONGTYPE"):
        sync_link.execute("LPOP", "a")
    assert isinstance(sync_link.pipeline([("LPOP", "a")])[0], RedisRefused)
    assert set(sync_link.scan("a*")) == {b"a"}
    sync_link.close()
    with pytest.raises(RedisClosed):
        sync_link.execute("PING")


# Addresses ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("redis://h", RedisTarget(host="h")),
        ("redis://h:7/2", RedisTarget(host="h", port=7, database=2)),
        ("redis://:p%40@h", RedisTarget(host="h", password="p@")),
        ("rediss://u:p@h", RedisTarget(host="h", username="u", password="p", tls=True)),
        ("unix:///run/r.sock?db=3", RedisTarget(path="/run/r.sock", database=3)),
        ("valkey://h", RedisTarget(host="h")),
    ],
)
def test_addresses_are_read(url: str, target: RedisTarget) -> None:
    assert RedisTarget.from_url(url) == target


@pytest.mark.parametrize("url", ["http://h", "redis://h:port", "redis://h/db"])
def test_addresses_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        RedisTarget.from_url(url)


def test_a_password_never_shows() -> None:
    assert "p@" not in repr(RedisTarget.from_url("redis://:p%40@h"))


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
