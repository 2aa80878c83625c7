"""The fault proxy, in front of a real NATS server with the stock client, and of a real Redis."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator

import nats
import nats.errors
import pytest
import redis.asyncio
import redis.exceptions
from nats.aio.client import Client
from nats.aio.msg import Msg
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from tests.chaos.frames import Splitter
from tests.chaos.harness import eventually
from tests.chaos.invariants import Ledger, final_never_lives_again, judge
from tests.chaos.proxy import FaultProxy
from tests.chaos.servers import NatsServer, RedisServer


@pytest.fixture
async def server() -> AsyncIterator[NatsServer]:
    async with NatsServer() as server:
        yield server


@pytest.fixture
async def proxy(server: NatsServer) -> AsyncIterator[FaultProxy]:
    async with FaultProxy.to(server.url) as proxy:
        yield proxy


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[Client]:
    async def quiet(error: Exception) -> None:
        """Faults are what we are here for."""

    client = await nats.connect(
        url,
        allow_reconnect=True,
        reconnect_time_wait=0.05,
        max_reconnect_attempts=-1,
        error_cb=quiet,
    )
    try:
        yield client
    finally:
        await client.close()


async def test_a_clean_proxy_changes_nothing(proxy: FaultProxy) -> None:
    async with connected(proxy.url) as client:
        stream = client.jetstream()
        await stream.add_stream(name="S", subjects=["s.>"])
        bodies = [bytes([n % 256]) * (n * 700) for n in range(60)]
        for n, body in enumerate(bodies):
            await stream.publish("s.x", body, headers={"n": str(n)})

        pull = await stream.pull_subscribe("s.x", "d")
        got = await pull.fetch(60, timeout=5)

        assert [message.data for message in got] == bodies
        assert [message.headers["n"] for message in got if message.headers] == [
            str(n) for n in range(60)
        ]


async def test_clients_are_not_told_a_way_around_the_proxy(proxy: FaultProxy) -> None:
    async with connected(proxy.url) as client:
        assert client._server_info["port"] == proxy.port
        assert "connect_urls" not in client._server_info


async def test_exactly_the_next_acks_are_lost_and_the_messages_are_stored(
    proxy: FaultProxy,
) -> None:
    async with connected(proxy.url) as client:
        stream = client.jetstream()
        await stream.add_stream(name="S", subjects=["s.>"])
        proxy.drop(acks=2)
        for _ in range(2):
            with pytest.raises(nats.errors.TimeoutError):
                await stream.publish("s.x", b"silence", timeout=0.2)
        ack = await stream.publish("s.x", b"heard", timeout=2)

        assert ack.seq == 3
        assert len(proxy.dropped) == 2


async def test_what_the_client_says_can_be_lost_too(proxy: FaultProxy) -> None:
    async with connected(proxy.url) as client:
        heard: list[bytes] = []

        async def listen(message: Msg) -> None:
            heard.append(message.data)

        await client.subscribe("word.>", cb=listen)
        proxy.drop(matching=b"word.bad", towards="server")
        await client.publish("word.bad", b"1")
        await client.publish("word.good", b"2")
        await eventually(lambda: bool(heard))

        assert heard == [b"2"]


async def test_a_chance_loses_some_and_the_seed_decides_which(server: NatsServer) -> None:
    async def survivors() -> list[bytes]:
        async with FaultProxy.to(server.url, seed=11) as proxy, connected(proxy.url) as client:
            proxy.drop(matching=b"c.x", chance=0.5)
            inbox = await client.subscribe("c.>")
            for n in range(40):
                await client.publish("c.x", b"%d" % n)
            await client.publish("c.end", b"end")
            got: list[bytes] = []
            while (data := (await inbox.next_msg(timeout=5)).data) != b"end":
                got.append(data)
            return got

    first, second = await survivors(), await survivors()

    assert 5 < len(first) < 35
    assert first == second


async def test_a_cut_refuses_for_a_while_and_the_client_comes_back(proxy: FaultProxy) -> None:
    async with connected(proxy.url) as client:
        await client.flush()
        cut = asyncio.create_task(proxy.cut(for_=0.5))
        await eventually(lambda: not client.is_connected)
        before = proxy.accepted
        await cut
        await eventually(lambda: client.is_connected)
        await client.flush(timeout=5)

        assert proxy.accepted > before
        assert proxy.connections == 1


async def test_a_delay_makes_answers_late_but_not_slow(proxy: FaultProxy) -> None:
    async with connected(proxy.url) as client:
        proxy.delay(0.2, towards="client")
        started = time.monotonic()
        await asyncio.gather(*(client.flush(timeout=5) for _ in range(10)))

        assert 0.2 <= time.monotonic() - started < 1.5


async def test_a_black_hole_swallows_until_healed(proxy: FaultProxy) -> None:
    async with connected(proxy.url) as client:
        proxy.blackhole()
        with pytest.raises(nats.errors.TimeoutError):
            await client.request("$JS.API.INFO", timeout=0.3)
        proxy.heal()

        assert (await client.request("$JS.API.INFO", timeout=5)).data


async def test_history_read_from_a_bucket_shows_a_record_going_back_to_live(
    server: NatsServer,
) -> None:
    async with connected(server.url) as client:
        bucket = await client.jetstream().create_key_value(bucket="results", history=10)
        for status in (100, 200, 100):
            await bucket.put("task.1", json.dumps({"status": status}).encode())
        await bucket.put("task.2", b'{"status": 200}')
        await bucket.delete("task.2")

        ledger = Ledger()
        await ledger.read_history(
            bucket, lambda key, value: "live" if json.loads(value)["status"] == 100 else "final"
        )

    assert [fact.kind for fact in ledger if fact.id == "task.1"] == ["live", "final", "live"]
    assert [fact.kind for fact in ledger if fact.id == "task.2"] == ["final", "gone"]
    assert [violation.id for violation in judge(ledger, [final_never_lives_again])] == ["task.1"]


async def test_redis_is_delayed_and_cut_as_plain_bytes() -> None:
    async with RedisServer() as server, FaultProxy.to(server.url) as proxy:
        client = redis.asyncio.Redis(
            port=proxy.port, socket_timeout=0.3, retry=Retry(NoBackoff(), 0)
        )
        assert await client.set("key", b"x" * 100_000)
        assert await client.get("key") == b"x" * 100_000

        proxy.blackhole()
        with pytest.raises(redis.exceptions.TimeoutError):
            await client.get("key")
        proxy.heal()

        proxy.refuse()
        with pytest.raises(redis.exceptions.ConnectionError):
            await client.get("key")
        proxy.heal()
        assert await client.get("key") == b"x" * 100_000
        await client.aclose()


@pytest.mark.parametrize("portion", [1, 2, 7, 1000])
def test_frames_are_found_however_the_bytes_are_portioned(portion: int) -> None:
    text = (
        b'INFO {"a":1}\r\nPING\r\nMSG a.b 1 5\r\nhel\r\n\r\n'
        b"MSG a 2 back 0\r\n\r\nHMSG h 3 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
        b"HPUB p r 12 12\r\nNATS/1.0\r\n\r\n\r\npub q 2\r\nok\r\n+OK\r\n"
    )
    splitter = Splitter()
    frames = [
        frame
        for start in range(0, len(text), portion)
        for frame in splitter.feed(text[start : start + portion])
    ]

    assert b"".join(frame.raw for frame in frames) == text
    assert [(f.verb, f.subject, f.reply, f.payload) for f in frames] == [
        (b"INFO", b"", b"", b""),
        (b"PING", b"", b"", b""),
        (b"MSG", b"a.b", b"", b"hel\r\n"),
        (b"MSG", b"a", b"back", b""),
        (b"HMSG", b"h", b"", b"hi"),
        (b"HPUB", b"p", b"r", b""),
        (b"PUB", b"q", b"", b"ok"),
        (b"+OK", b"", b"", b""),
    ]
