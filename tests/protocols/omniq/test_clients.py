"""One surface, many doors: asyncio and threads, our links and redis-py, flushed scripts."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
import redis.asyncio as aio_redis_py

from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.broker.redis_port import RedisClosed
from penstock.core.errors import ConfigError
from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.errors import BadArgs, TokenMismatch
from penstock.protocols.omniq.monitor import Monitor
from penstock.protocols.omniq.store import Settle
from penstock.protocols.omniq.sync_client import SyncOmniqClient
from penstock.protocols.omniq.sync_monitor import SyncMonitor
from penstock.protocols.omniq.wire import ReservedJob
from tests.protocols.omniq.invariants import check_invariants
from tests.protocols.omniq.stories import leased


def surface(kind: type) -> dict[str, list[str]]:
    names = {
        name: member
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }
    return {
        name: [str(parameter) for parameter in inspect.signature(member).parameters.values()]
        for name, member in names.items()
    }


@pytest.mark.parametrize(("one", "other"), [(OmniqClient, SyncOmniqClient), (Monitor, SyncMonitor)])
def test_both_clients_have_the_same_calls_with_the_same_arguments(one: type, other: type) -> None:
    assert surface(one) == surface(other)
    assert len(surface(one)) > 10


async def a_full_cycle(client: OmniqClient, queue: str) -> None:
    await client.publish(queue, {"ä": 1}, gid="g")
    job = await leased(client, queue)
    assert (job.payload, job.gid) == ('{"ä":1}', "g")
    await client.heartbeat(queue, job.job_id, job.lease_token)
    await client.checkpoint(queue, job.job_id, job.lease_token, b"half")
    assert (await client.ack_fail(queue, job.job_id, job.lease_token, "ö"))[0] == "RETRY"
    assert await client.promote_delayed(queue, now_ms_override=client.now_ms() + 9000) == 1
    turn = await client.turn(queue, count=2)
    assert turn.jobs[0].checkpoint == b"half"
    await client.pause(queue)
    assert await client.is_paused(queue)
    assert await client.resume(queue) == 1
    ended = await client.settle(
        queue,
        [Settle.succeed(job.job_id, turn.jobs[0].lease_token, result=b"r", result_ttl_ms=9000)],
    )
    assert ended[0].status == "OK"
    assert await client.result(queue, job.job_id) == b"r"
    found = await client.monitor.get_job(queue, job.job_id)
    assert found is not None
    assert (found.state, found.last_error) == ("completed", "ö")
    assert queue in await client.monitor.scan_queues()
    await client.rebuild(queue)
    await client.childs_init(queue, 1)
    assert await client.child_ack(queue, "c") == 0


@pytest.mark.parametrize("decodes", [False, True])
@pytest.mark.parametrize("protocol", [2, 3])
async def test_a_redis_client_of_the_caller_is_used_and_left_open(
    redis_server: EmbeddedRedis, queue: str, decodes: bool, protocol: int
) -> None:
    theirs = aio_redis_py.Redis.from_url(
        redis_server.url, decode_responses=decodes, protocol=protocol
    )
    async with OmniqClient(redis=theirs) as client:
        await a_full_cycle(client, queue)
    assert await theirs.ping()
    await theirs.aclose()


async def test_our_own_link_does_the_full_cycle(redis_server: EmbeddedRedis, queue: str) -> None:
    async with OmniqClient(redis_server.url) as client:
        await a_full_cycle(client, queue)


@pytest.mark.parametrize("door", ["link", "bytes", "text"])
def test_the_client_for_threads_does_the_same(
    redis_server: EmbeddedRedis, queue: str, raw: Any, door: str
) -> None:
    theirs = redis_py.Redis.from_url(redis_server.url, decode_responses=door == "text")
    made = SyncOmniqClient(redis_server.url) if door == "link" else SyncOmniqClient(redis=theirs)
    with made as client:
        published = client.publish_many(queue, [{"n": n} for n in range(3)], gid="g")
        job = client.reserve(queue)
        assert isinstance(job, ReservedJob)
        assert job.job_id == published[0]
        client.heartbeat(queue, job.job_id, job.lease_token)
        with pytest.raises(TokenMismatch):
            client.ack_success(queue, job.job_id, "no")
        client.ack_success(queue, job.job_id, job.lease_token)
        assert client.monitor.counts(queue).completed == 1
        assert queue in client.monitor.scan_queues()
        assert client.rebuild(queue).groups_mended == 0
    check_invariants(raw, queue)
    assert theirs.ping()
    theirs.close()


def test_threads_share_one_client(redis_server: EmbeddedRedis, queue: str, raw: Any) -> None:
    with SyncOmniqClient(redis_server.url) as client:
        client.publish_many(queue, [{"n": n} for n in range(400)])
        done: list[str] = []

        def work() -> None:
            while isinstance(job := client.reserve(queue), ReservedJob):
                client.ack_success(queue, job.job_id, job.lease_token)
                done.append(job.job_id)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert len(done) == len(set(done)) == 400


@pytest.mark.parametrize("door", ["link", "redis-py"])
async def test_scripts_may_be_flushed_before_every_call(
    fresh_redis: EmbeddedRedis, queue: str, door: str
) -> None:
    theirs = aio_redis_py.Redis.from_url(fresh_redis.url)

    class Flushed(OmniqClient):
        async def _run(self, call: Any) -> Any:
            await theirs.execute_command("SCRIPT", "FLUSH")
            return await super()._run(call)

    made = Flushed(fresh_redis.url) if door == "link" else Flushed(redis=theirs)
    async with made as client:
        await a_full_cycle(client, queue)
    await theirs.aclose()


async def test_without_a_url_a_server_of_our_own_is_started_and_stopped(
    tmp_path: Path, queue: str
) -> None:
    async with OmniqClient(folder=str(tmp_path)) as client:
        published = await client.publish(queue, {"kept": True})
        server = client._opening.server
        assert server is not None
        assert server.running
    assert not server.running

    async with OmniqClient(folder=str(tmp_path)) as client:
        assert (await leased(client, queue)).job_id == published


async def test_a_closed_client_says_so(redis_server: EmbeddedRedis, queue: str) -> None:
    client = OmniqClient(redis_server.url)
    await client.publish(queue, {})
    await client.close()
    await client.close()

    with pytest.raises(RedisClosed):
        await client.publish(queue, {})


async def test_contradictory_openings_are_refused(redis_server: EmbeddedRedis) -> None:
    blocking = redis_py.Redis.from_url(redis_server.url)
    with pytest.raises(ConfigError, match="both"):
        OmniqClient(redis_server.url, redis=blocking)
    with pytest.raises(ConfigError, match="blocking"):
        await OmniqClient(redis=blocking).publish("q", {})
    with pytest.raises(ConfigError, match="not a redis-py client"):
        await OmniqClient(redis=object()).publish("q", {})
    with pytest.raises(ConfigError, match="cluster"):
        OmniqClient(cluster=True)
    with pytest.raises(BadArgs, match="compat"):
        OmniqClient(redis_server.url, compat="v9")  # type: ignore[arg-type]
    blocking.close()


async def test_an_undecodable_payload_of_another_client_still_comes_through(
    redis_server: EmbeddedRedis, queue: str, raw: Any
) -> None:
    async with OmniqClient(redis_server.url) as client:
        await client.publish(queue, {}, job_id="x")
        with redis_py.Redis.from_url(redis_server.url) as bytes_client:
            bytes_client.hset(f"{{{queue}}}:job:x", "payload", b'{"b":"\xff"}')

        job = await leased(client, queue)

        assert job.payload.encode("utf-8", "surrogateescape") == b'{"b":"\xff"}'
