"""Scenarios 24 and 25: forgotten scripts, a Redis that restarts, clocks that are wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import redis as redis_py

from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.protocols.omniq.wire import now_ms
from tests.interop.omniq.conftest import OURS
from tests.interop.omniq.peer_env import VERSIONS
from tests.interop.omniq.sides import Ours, Peer, Side, Theirs, in_a_thread

TEN_MINUTES = 600


class Stage(NamedTuple):
    """A server to break, the keys in it, and both sides."""

    server: EmbeddedRedis
    raw: Any
    ours: Ours
    theirs: Theirs

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.ours, self.theirs


@pytest.fixture(scope="module", params=VERSIONS)
def breakable(
    request: pytest.FixtureRequest, open_peer: Callable[..., Peer]
) -> Iterator[tuple[EmbeddedRedis, Peer]]:
    """A server that is flushed and restarted, and a peer on it."""
    with EmbeddedRedis(aof="always") as server:
        running = open_peer(request.param, server.url)
        yield server, running
        running.close()


@pytest.fixture(params=OURS)
def stage(request: pytest.FixtureRequest, breakable: tuple[EmbeddedRedis, Peer]) -> Iterator[Stage]:
    server, running = breakable
    client = in_a_thread(OURS[request.param](server.url))
    with redis_py.Redis.from_url(server.url, decode_responses=True) as raw:
        yield Stage(
            server,
            raw,
            Ours(raw, client, mirrors=False),
            Theirs(raw, running, mirrors=False),
        )
    client.close()


def test_24_scripts_may_be_forgotten_before_every_call(
    stage: Stage, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for side in stage.sides:

        def call(name: str, *, before: Any = side._call, **args: Any) -> Any:
            stage.raw.script_flush()
            return before(name, **args)

        monkeypatch.setattr(side, "_call", call)
    for one, two in (stage.sides, stage.sides[::-1]):
        job_id = one.publish(queue, {}, gid="g", max_attempts=2, backoff_ms=0)
        job = two.leased(queue)
        one.heartbeat(queue, job_id, job.lease_token)
        assert two.fail(queue, job_id, job.lease_token)[0] == "RETRY"
        assert one.promote(queue) == 1
        again = one.leased(queue)
        assert two.reap(queue) == 0
        two.fail(queue, job_id, again.lease_token)
        one.retry_failed(queue, job_id)
        last = two.leased(queue)
        one.ack(queue, job_id, last.lease_token)
        two.pause(queue)
        assert one.reserve(queue) == "PAUSED"
        assert one.resume(queue) == 1


def test_24_a_redis_that_restarts_between_the_steps_is_found_again_by_both(
    stage: Stage, queue: str
) -> None:
    for one, two in (stage.sides, stage.sides[::-1]):
        job_id = one.publish(queue, {"kept": True}, gid="g")
        stage.server.restart()
        job = two.leased(queue)
        assert (job.job_id, job.payload) == (job_id, '{"kept":true}')
        stage.server.restart()
        one.heartbeat(queue, job_id, job.lease_token)
        stage.server.kill()
        stage.server.start()
        one.ack(queue, job_id, job.lease_token)
        assert two.reserve(queue) is None


@pytest.fixture(params=[TEN_MINUTES, -TEN_MINUTES], ids=["fast", "slow"])
def wrong_clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Our process's wall clock, ten minutes off; the peer and the server keep the true one."""
    true, true_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: true() + request.param)
    monkeypatch.setattr(time, "time_ns", lambda: true_ns() + request.param * 1_000_000_000)
    return int(request.param)


def test_25_a_wrong_clock_of_ours_harms_nobody(
    ours: Ours, theirs: Theirs, queue: str, raw: Any, wrong_clock: int
) -> None:
    def server_ms() -> int:
        seconds, micros = raw.time()
        return int(seconds) * 1000 + int(micros) // 1000

    assert abs(now_ms() - server_ms() - wrong_clock * 1000) < TEN_MINUTES * 500

    before = server_ms()
    ours.publish(queue, {}, job_id="x", timeout_ms=60_000, backoff_ms=0, max_attempts=3)
    created = int(raw.hget(f"{{{queue}}}:job:x", "created_ms"))
    assert before <= created <= server_ms()

    job = ours.leased(queue)
    assert before + 60_000 <= job.lock_until_ms <= server_ms() + 60_000
    assert theirs.reap(queue) == 0, "a lease of ours looks lapsed to a true clock"
    lock = ours.heartbeat(queue, "x", job.lease_token)
    assert job.lock_until_ms <= lock <= server_ms() + 60_000
    _, due = ours.fail(queue, "x", job.lease_token)
    assert due is not None
    assert before <= due <= server_ms()
    assert theirs.promote(queue) == 1, "what is due at once is not due to a true clock"

    held = theirs.leased(queue)
    assert ours.reap(queue) == 0, "a lease of theirs was reaped by a fast clock"
    theirs.ack(queue, "x", held.lease_token)
    theirs.publish(queue, {}, job_id="later", due_ms=server_ms() + 300_000)
    assert ours.promote(queue) == 0, "a job of theirs was promoted too early"
    assert theirs.publish(queue, {}, job_id="lapsed", timeout_ms=1)
    theirs.leased(queue)
    deadline = time.monotonic() + 20
    while ours.reap(queue) == 0:
        assert time.monotonic() < deadline, "a slow clock never reaps"
