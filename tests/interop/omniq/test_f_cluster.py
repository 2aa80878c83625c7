"""Scenario 26: both sides on one Redis Cluster of three nodes, queues in every part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis as redis_py
from redis.crc import key_slot

from penstock.core.ids import short_token
from tests.broker.redis_nodes import RedisNodes
from tests.interop.omniq.conftest import OURS
from tests.interop.omniq.peer_env import VERSIONS
from tests.interop.omniq.sides import Ours, Peer, Side, Theirs, code_of, in_a_thread
from tests.interop.omniq.workload import Workload


@pytest.fixture(scope="module")
def nodes() -> Iterator[RedisNodes]:
    with RedisNodes() as running:
        yield running


@pytest.fixture(scope="module", params=VERSIONS)
def clustered(
    request: pytest.FixtureRequest, nodes: RedisNodes, open_peer: Callable[..., Peer]
) -> Iterator[tuple[str, Peer]]:
    running = open_peer(request.param, nodes.url, cluster=True)
    yield request.param, running
    running.close()


@pytest.fixture(params=OURS)
def sides(
    request: pytest.FixtureRequest, nodes: RedisNodes, clustered: tuple[str, Peer]
) -> Iterator[tuple[Side, Side]]:
    version, running = clustered
    mirrors = version.startswith("4")
    client = in_a_thread(OURS[request.param](nodes.url, compat="v4" if mirrors else "v1"))
    keys: Any = redis_py.RedisCluster.from_url(nodes.url, decode_responses=True)
    yield Ours(keys, client, mirrors=mirrors), Theirs(keys, running, mirrors=mirrors)
    client.close()
    keys.close()


def test_26_twenty_queues_of_both_live_in_one_slot_each(
    sides: tuple[Side, Side], nodes: RedisNodes
) -> None:
    queues = [f"c-{n}-{short_token()}" for n in range(20)]
    for n, queue in enumerate(queues):
        one, two = sides if n % 2 else sides[::-1]
        job_id = one.publish(queue, {"n": n}, gid="g", group_limit=2, max_attempts=2, backoff_ms=0)
        job = two.leased(queue)
        assert (job.job_id, job.payload) == (job_id, f'{{"n":{n}}}')
        one.heartbeat(queue, job_id, job.lease_token)
        assert two.fail(queue, job_id, job.lease_token)[0] == "RETRY"
        assert one.promote(queue) == 1
        again = two.leased(queue)
        one.fail(queue, job_id, again.lease_token)
        two.retry_failed(queue, job_id)
        last = one.leased(queue)
        two.ack(queue, job_id, last.lease_token)
        one.pause(queue)
        assert two.reserve(queue) == "PAUSED"
        assert two.resume(queue) == 1
    for queue in queues:
        mine = [key for key in nodes.all_keys() if key.startswith(f"{{{queue}}}:")]
        assert {key_slot(key.encode()) for key in mine} == {key_slot(queue.encode())}
    assert len({nodes.owner(f"{{{queue}}}").port for queue in queues}) == 3


def test_26_a_random_while_keeps_every_law(sides: tuple[Side, Side]) -> None:
    for seed in (1, 2):
        Workload(sides, f"w-{short_token()}", seed).run(40)


def test_26_fan_outs_have_slots_of_their_own(sides: tuple[Side, Side], nodes: RedisNodes) -> None:
    for n in range(6):
        one, two = sides if n % 2 else sides[::-1]
        key = f"fan-{n}-{short_token()}"
        one.children(key, 2)
        assert code_of(two.children, key, 2) == "ALREADY_INIT"
        assert [two.child(key, "a"), one.child(key, "a"), one.child(key, "b")] == [1, 1, 0]
        assert not [kept for kept in nodes.all_keys() if kept.startswith(f"{{cc:{key}}}")]
