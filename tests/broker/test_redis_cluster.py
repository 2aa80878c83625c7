"""The cluster links follow slots wherever they go; both kinds, on real nodes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis as redis_py
from redis.crc import key_slot

from penstock.broker.redis_cluster import RedisClusterLink
from penstock.broker.redis_cluster_sync import SyncRedisClusterLink
from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.broker.redis_port import RedisClosed, RedisLost, RedisUnreachable
from penstock.broker.redis_slots import Redirect, SlotMap, redirect_of, slot_of, slot_of_command
from penstock.broker.resp import RedisRefused
from penstock.core.ids import short_token
from tests.broker.redis_nodes import RedisNodes, raw, wait_for


class Threaded:
    """The link for threads with calls that can be awaited."""

    def __init__(self, url: str) -> None:
        self.link = SyncRedisClusterLink(url)

    async def execute(self, *args: Any) -> Any:
        return await asyncio.to_thread(self.link.execute, *args)

    async def pipeline(self, commands: Any) -> Any:
        return await asyncio.to_thread(self.link.pipeline, commands)

    async def scan(self, pattern: str) -> AsyncIterator[bytes]:
        for key in await asyncio.to_thread(lambda: list(self.link.scan(pattern))):
            yield key

    async def aclose(self) -> None:
        self.link.close()


LINKS = {"asyncio": RedisClusterLink, "threads": Threaded}


@pytest.fixture(scope="module")
def nodes() -> Iterator[RedisNodes]:
    with RedisNodes(replicas=1) as running:
        yield running


@pytest.fixture(params=LINKS)
async def link(request: pytest.FixtureRequest, nodes: RedisNodes) -> AsyncIterator[Any]:
    opened = LINKS[request.param](nodes.url)
    yield opened
    await opened.aclose()


@pytest.fixture
def tag() -> str:
    return f"{{t-{short_token()}}}"


async def test_every_key_is_found_wherever_it_lives(link: Any, tag: str) -> None:
    names = [f"{{{tag[1:-1]}-{n}}}:k" for n in range(60)]

    replies = await link.pipeline([("SET", name, n) for n, name in enumerate(names)])

    assert replies == [b"OK"] * 60
    assert [await link.execute("GET", name) for name in names] == [b"%d" % n for n in range(60)]
    found = {key async for key in link.scan(f"{{{tag[1:-1]}-*")}
    assert found == {name.encode() for name in names}


async def test_a_refusal_is_for_the_caller_and_in_a_pipeline_a_member(link: Any, tag: str) -> None:
    await link.execute("SET", tag, "text")

    with pytest.raises(RedisRefused, match="WRONGTYPE"):
        await link.execute("LPUSH", tag, "x")
    refused, kept = await link.pipeline([("LPUSH", tag, "x"), ("GET", tag)])

    assert refused.kind == "WRONGTYPE"
    assert kept == b"text"


async def test_a_slot_that_moves_is_followed_at_every_stage(
    link: Any, nodes: RedisNodes, tag: str
) -> None:
    await link.execute("SET", f"{tag}:old", "1")
    source = nodes.owner(tag)
    target = next(server for server in nodes.primaries if server is not source)
    done = threading.Event()
    loop = asyncio.get_running_loop()

    def halfway() -> None:
        """The slot is in two places: what is there stays, what is new begins at its new home."""

        async def look() -> None:
            assert await link.execute("GET", f"{tag}:old") == b"1"
            assert await link.execute("SET", f"{tag}:new", "2") == b"OK"

        asyncio.run_coroutine_threadsafe(look(), loop).result(30)
        done.set()

    await asyncio.to_thread(nodes.move_slot, tag, target, halfway=halfway)

    assert done.is_set()
    assert await link.execute("MGET", f"{tag}:old", f"{tag}:new") == [b"1", b"2"]
    with raw(target) as node:
        assert set(node.keys(f"{tag}:*")) == {f"{tag}:old", f"{tag}:new"}
    await asyncio.to_thread(nodes.move_slot, tag, source)
    assert await link.execute("GET", f"{tag}:new") == b"2"


async def test_a_replica_that_took_over_is_found(link: Any, nodes: RedisNodes, tag: str) -> None:
    await link.execute("SET", tag, "1")
    other = await asyncio.to_thread(nodes.hand_over, nodes.owner(tag))

    assert await surely(link, "GET", tag) == b"1"
    assert await surely(link, "SET", tag, "2") == b"OK"
    await asyncio.to_thread(wait_for, lambda: nodes.owner(tag) is other, what="the news")


async def surely(link: Any, *args: str) -> Any:
    """What may be sent twice is, when the connection broke under it."""
    while True:
        with contextlib.suppress(RedisLost):
            return await link.execute(*args)


async def test_a_primary_that_dies_is_replaced_within_the_timeout(tag: str) -> None:
    with RedisNodes(replicas=1) as own:
        links = [kind(own.url) for kind in LINKS.values()]
        for link in links:
            await link.execute("SET", tag, "1")
        dead = own.owner(tag)
        with raw(dead) as node:
            assert node.wait(1, 10_000) == 1

        dead.kill()

        for link in links:
            assert await surely(link, "GET", tag) == b"1"
            await link.aclose()


@pytest.mark.parametrize("kind", LINKS.values(), ids=LINKS)
async def test_a_cluster_that_is_not_there_is_said_to_be_unreachable(kind: Any) -> None:
    with EmbeddedRedis() as server:
        url = server.url
    with pytest.raises(RedisUnreachable):
        link = kind(url)
        inner = getattr(link, "link", link)
        inner._patience = 0.2
        await link.execute("GET", "x")
    await link.aclose()
    with pytest.raises(RedisClosed):
        await link.execute("GET", "x")


@pytest.mark.parametrize("kind", LINKS.values(), ids=LINKS)
async def test_a_single_server_says_that_it_is_no_cluster(kind: Any) -> None:
    with EmbeddedRedis() as server:
        link = kind(server.url)
        with pytest.raises(RedisRefused, match="cluster support disabled"):
            await link.execute("GET", "x")
        await link.aclose()


@pytest.mark.parametrize(
    "key", ["", "a", "{}", "{}b", "a{b}c", "{{b}}", "{b", "b}", "{a}{b}", "ü{ö}ä", "x" * 300]
)
def test_slots_are_the_ones_of_redis(key: str) -> None:
    assert slot_of(key.encode()) == key_slot(key.encode())


def test_the_key_of_a_command_is_known() -> None:
    assert slot_of_command(("EVALSHA", "sha", "1", "{a}:meta", "x")) == slot_of(b"a")
    assert slot_of_command(("EVAL", "text", 0)) is None
    assert slot_of_command(("BLPOP", b"{a}:x:wake", 5)) == slot_of(b"a")
    assert slot_of_command(("SCRIPT", "FLUSH")) is None


def test_redirections_are_read_as_nodes_write_them() -> None:
    asked = ("10.0.0.1", 7000)
    told = {
        "MOVED 7 10.0.0.2:7001": Redirect("moved", ("10.0.0.2", 7001)),
        "MOVED 7 :7001": Redirect("moved", ("10.0.0.1", 7001)),
        "MOVED 7 ::1:7001": Redirect("moved", ("::1", 7001)),
        "ASK 7 10.0.0.2:7001": Redirect("ask", ("10.0.0.2", 7001)),
        "ASK 7 :7001": Redirect("ask", ("10.0.0.1", 7001)),
        "TRYAGAIN Multiple keys": Redirect("later"),
        "CLUSTERDOWN Hash slot not served": Redirect("later"),
        "WRONGTYPE Operation": None,
    }
    assert {text: redirect_of(RedisRefused(text), asked) for text in told} == told


def test_a_script_never_goes_after_a_slot_on_its_way() -> None:
    refused = RedisRefused("ASK 7 10.0.0.2:7001")
    script = ("EVALSHA", "sha", "1", "{a}:meta")

    assert redirect_of(refused, ("10.0.0.1", 7000), script) == Redirect("later")
    assert redirect_of(refused, ("10.0.0.1", 7000), ("GET", "{a}")) != Redirect("later")


def test_a_map_knows_owners_and_everybody() -> None:
    slots = SlotMap()
    assert slots.owner(None) is None
    reply = [
        [0, 99, [b"", 7000, b"id"], [b"10.0.0.9", 7009, b"id"]],
        [100, 16383, [b"10.0.0.2", 7001, b"id"]],
    ]

    slots.load(reply, ("10.0.0.1", 7000))

    assert slots.owner(99) == ("10.0.0.1", 7000)
    assert slots.owner(100) == ("10.0.0.2", 7001)
    assert slots.primaries() == [("10.0.0.1", 7000), ("10.0.0.2", 7001)]
    assert ("10.0.0.9", 7009) in slots.nodes
    slots.moved(99, ("10.0.0.2", 7001))
    assert slots.owner(99) == ("10.0.0.2", 7001)


def test_the_client_of_the_registry_agrees_about_the_cluster(nodes: RedisNodes, tag: str) -> None:
    link = SyncRedisClusterLink(nodes.url)
    theirs = redis_py.RedisCluster.from_url(nodes.url, decode_responses=True)
    link.execute("SET", f"{tag}:k", "v")
    assert theirs.get(f"{tag}:k") == "v"
    theirs.close()
    link.close()
