"""Scenarios 19 to 23: consumers of both sides on one queue, their beats, deaths and ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.broker.redis_embedded import EmbeddedRedis
from tests.interop.omniq import consumers
from tests.interop.omniq.consumers import Consumer
from tests.interop.omniq.sides import Lease, Peer, Theirs
from tests.protocols.omniq.invariants import check_invariants

JOBS = 500
Start = Callable[..., Consumer]


@pytest.fixture(scope="module", params=["1.7.0", pytest.param("4.0.0", marks=pytest.mark.slow)])
def peer(
    request: pytest.FixtureRequest, interop_redis: EmbeddedRedis, open_peer: Callable[..., Peer]
) -> Iterator[tuple[str, Peer]]:
    """These take their time, so one version does for every day."""
    running = open_peer(request.param, interop_redis.url)
    yield request.param, running
    running.close()


@pytest.fixture
def url(interop_redis: EmbeddedRedis) -> str:
    return interop_redis.url


@pytest.fixture
def start_ours(url: str, queue: str, version: str) -> Start:
    """Our consumer, with the mirrors of 4.x beside a 4.x."""

    def start(**options: Any) -> Consumer:
        compat = "v4" if version.startswith("4") else "v1"
        return consumers.ours(url, queue, compat=compat, **options)

    return start


@pytest.fixture
def start_theirs(url: str, queue: str, version: str) -> Start:
    return lambda: consumers.theirs(version, url, queue)


def settled(raw: Any, queue: str) -> bool:
    return not raw.exists(f"{{{queue}}}:active")


def await_settled(raw: Any, queue: str) -> None:
    """Handlers say that they end before the acknowledgement is out."""
    deadline = time.monotonic() + 30
    while not settled(raw, queue):
        assert time.monotonic() < deadline, "jobs were never acknowledged"
        time.sleep(0.02)


def lock_of(raw: Any, queue: str, job_id: str) -> int:
    return int(raw.hget(f"{{{queue}}}:job:{job_id}", "lock_until_ms") or 0)


def server_ms(raw: Any) -> int:
    seconds, micros = raw.time()
    return int(seconds) * 1000 + int(micros) // 1000


# -- 19: everything is handled -----------------------------------------------------------------


def test_19_theirs_handle_what_ours_publish(
    start_theirs: Start, url: str, queue: str, raw: Any
) -> None:
    from penstock.protocols.omniq.sync_client import SyncOmniqClient

    with SyncOmniqClient(url) as client, start_theirs() as consumer:
        ids = client.publish_many(queue, [{"n": n} for n in range(JOBS)])
        done = consumer.await_facts("finishing", JOBS)
        await_settled(raw, queue)

        assert [fact.id for fact in done] == ids
        assert {fact.attempt for fact in done} == {1}
        assert client.monitor.counts(queue).completed == 100


@pytest.mark.parametrize("kind", ["asyncio", "threads"])
@pytest.mark.parametrize("concurrency", [1, 8])
def test_19_ours_handle_what_theirs_publish(
    start_ours: Start, theirs: Theirs, queue: str, raw: Any, concurrency: int, kind: str
) -> None:
    theirs.lawful = False  # the laws are looked at once, at the end
    with start_ours(concurrency=concurrency, kind=kind) as consumer:
        ids = [theirs.publish(queue, {"n": n}) for n in range(JOBS)]
        done = consumer.await_facts("finishing", JOBS)
        await_settled(raw, queue)

        assert sorted(fact.id for fact in done) == sorted(ids)
        if concurrency == 1:
            assert [fact.id for fact in done] == ids
        assert consumer.stop("SIGTERM") == 0
    check_invariants(raw, queue, mirrors=theirs.mirrors, shared=True)


# -- 20: long handlers ---------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["ours", "ours in threads", "theirs"])
def test_20_a_handler_longer_than_its_lease_keeps_it_by_heartbeats(
    start_ours: Start, start_theirs: Start, theirs: Theirs, queue: str, raw: Any, who: str
) -> None:
    """Theirs beat at most once a second, ours three times in a lease."""
    timeout_ms, sleep_s = (2_000, 4.2) if who == "theirs" else (900, 2.5)
    theirs.lawful = False
    start = {
        "ours": start_ours,
        "ours in threads": lambda: start_ours(kind="threads"),
        "theirs": start_theirs,
    }[who]
    with start() as consumer:
        job_id = theirs.publish(queue, {"sleep": sleep_s}, timeout_ms=timeout_ms, gid="g")
        consumer.await_facts("started")
        beats = {lock_of(raw, queue, job_id)}
        while not consumer.facts("finishing"):
            assert theirs.reap(queue) == 0, "a running job was taken away"
            beats.add(lock_of(raw, queue, job_id))
            time.sleep(0.05)
        await_settled(raw, queue)

        assert len(beats - {0}) > 3
        assert [fact.attempt for fact in consumer.facts("finishing")] == [1]
    assert raw.hget(f"{{{queue}}}:job:{job_id}", "state") == "completed"


# -- 21: death -----------------------------------------------------------------------------------


def test_21_a_job_of_a_dead_worker_of_ours_is_finished_by_theirs(
    start_ours: Start, start_theirs: Start, theirs: Theirs, queue: str, raw: Any
) -> None:
    theirs.lawful = False
    with start_ours() as dying:
        job_id = theirs.publish(
            queue, {"sleep": 1.3}, timeout_ms=1_000, backoff_ms=0, max_attempts=5, gid="g"
        )
        dying.await_facts("started")
        first = lock_of(raw, queue, job_id)
        while lock_of(raw, queue, job_id) == first:  # at least one beat
            time.sleep(0.01)
        dying.kill()
    left_ms = lock_of(raw, queue, job_id) - server_ms(raw)
    assert left_ms <= 1_000, "beats of ours added up"

    with start_theirs() as heir:
        [done] = heir.await_facts("finishing")
        await_settled(raw, queue)
    assert (done.id, done.attempt) == (job_id, 2)
    check_invariants(raw, queue, mirrors=theirs.mirrors, shared=True)


def test_21_a_job_of_a_dead_worker_of_theirs_is_finished_by_ours(
    start_ours: Start, start_theirs: Start, theirs: Theirs, queue: str, raw: Any
) -> None:
    theirs.lawful = False
    with start_theirs() as dying:
        job_id = theirs.publish(
            queue, {"sleep": 1.3}, timeout_ms=1_000, backoff_ms=0, max_attempts=5, gid="g"
        )
        dying.await_facts("started")
        dying.kill()

    with start_ours() as heir:
        [done] = heir.await_facts("finishing")
        await_settled(raw, queue)
    assert (done.id, done.attempt) == (job_id, 2)
    check_invariants(raw, queue, mirrors=theirs.mirrors, shared=True)


# -- 22: a lease that is lost ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["asyncio", "threads"])
def test_22_a_handler_hears_that_its_lease_is_lost_and_never_acknowledges(
    start_ours: Start, theirs: Theirs, queue: str, raw: Any, kind: str
) -> None:
    theirs.lawful = False
    with start_ours(kind=kind) as consumer:
        job_id = theirs.publish(
            queue, {"sleep": 50}, timeout_ms=900, backoff_ms=3_600_000, max_attempts=5, gid="g"
        )
        consumer.await_facts("started")
        theirs.pause(queue)  # or our consumer would take it again

        far = server_ms(raw) + 3_600_000
        assert theirs.reap(queue, far) == 1
        assert theirs.promote(queue, far + 3_600_000) == 1
        [lost] = consumer.await_facts("lost")
        assert (lost.id, lost.attempt) == (job_id, 1)

        assert consumer.stop("SIGTERM") == 0
        assert consumer.facts("finishing") == []
    theirs.resume(queue)
    job = theirs.leased(queue)
    assert (job.job_id, job.attempt) == (job_id, 2)
    theirs.ack(queue, job_id, job.lease_token)
    assert raw.lrange(f"{{{queue}}}:completed", 0, -1) == [job_id]
    check_invariants(raw, queue, mirrors=theirs.mirrors, shared=True)


# -- 23: ends --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["asyncio", "threads"])
@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "stop"])
def test_23_with_drain_what_runs_is_finished(
    start_ours: Start, theirs: Theirs, queue: str, raw: Any, how: str, kind: str
) -> None:
    theirs.lawful = False
    with start_ours(kind=kind) as consumer:
        job_id = theirs.publish(queue, {"sleep": 0.5}, gid="g")
        behind = theirs.publish(queue, {}, gid="g")
        consumer.await_facts("started")

        assert consumer.stop(how) == 0

        assert [fact.id for fact in consumer.facts("finishing")] == [job_id]
    job = theirs.leased(queue)
    assert (job.job_id, job.attempt) == (behind, 1)
    check_invariants(raw, queue, mirrors=theirs.mirrors, shared=True)


@pytest.mark.parametrize("kind", ["asyncio", "threads"])
@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "stop"])
def test_23_without_drain_what_runs_is_given_back_and_keeps_its_attempt(
    start_ours: Start, theirs: Theirs, queue: str, raw: Any, how: str, kind: str
) -> None:
    theirs.lawful = False
    with start_ours(kind=kind, drain=False, concurrency=2) as consumer:
        ids = [theirs.publish(queue, {"sleep": 50}, gid=gid) for gid in ("g", "")]
        consumer.await_facts("started", 2)
        behind = theirs.publish(queue, {}, gid="g")

        assert consumer.stop(how) == 0

        assert consumer.facts("finishing") == []
    jobs = [theirs.leased(queue), theirs.leased(queue)]
    assert sorted(job.job_id for job in jobs) == sorted(ids)
    assert {job.attempt for job in jobs} == {1}
    assert theirs.reserve(queue) is None  # the group is full, not leaking
    for job in jobs:
        theirs.ack(queue, job.job_id, job.lease_token)
    assert isinstance(last := theirs.reserve(queue), Lease)
    assert last.job_id == behind
    check_invariants(raw, queue, mirrors=theirs.mirrors, shared=True)
