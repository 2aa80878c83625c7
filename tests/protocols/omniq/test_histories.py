"""Random histories over a real Redis: after every step the queue is what the model says it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis as redis_py
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.core.ids import short_token
from penstock.protocols.omniq.errors import OmniqError, TokenMismatch
from penstock.protocols.omniq.store import Settle
from penstock.protocols.omniq.sync_client import SyncOmniqClient
from penstock.protocols.omniq.wire import Compat, Paused
from tests.protocols.omniq.invariants import check_invariants
from tests.protocols.omniq.model import Job, Model
from tests.protocols.omniq.stories import T

NAMES = st.sampled_from([f"j{n}" for n in range(8)])
GIDS = st.sampled_from(["", "", "a", "b"])
VERBS = st.sampled_from(["succeed", "succeed", "fail", "retry", "reject", "snooze", "release"])
DELAYS = st.sampled_from([0, 3, 30])


class Queue(RuleBasedStateMachine):
    """One queue under one client, with a model beside it."""

    server: EmbeddedRedis
    compat: Compat = "v1"

    def __init__(self) -> None:
        super().__init__()
        self.queue = f"h-{short_token()}"
        self.client = SyncOmniqClient(self.server.url, compat=self.compat)
        self.raw: Any = redis_py.Redis.from_url(self.server.url, decode_responses=True)
        self.model = Model()
        self.tokens: dict[str, str] = {}
        self.now = T

    def teardown(self) -> None:
        self.client.close()
        self.raw.close()

    @rule(
        name=NAMES,
        gid=GIDS,
        limit=st.integers(0, 3),
        attempts=st.integers(1, 3),
        later=st.sampled_from([0, 0, 0, 8]),
        backoff=DELAYS,
    )
    def publish(
        self, name: str, gid: str, limit: int, attempts: int, later: int, backoff: int
    ) -> None:
        job = Job(name, gid, attempts, 20, backoff)
        published = self.client.publish(
            self.queue,
            {"name": name},
            job_id=name,
            gid=gid,
            group_limit=limit,
            max_attempts=attempts,
            timeout_ms=20,
            backoff_ms=backoff,
            due_ms=self.now + later,
            now_ms_override=self.now,
        )
        assert published.kept != self.model.publish(job, limit, self.now + later, self.now)

    @rule(count=st.integers(1, 4), verbs=st.lists(VERBS, max_size=2), delay=DELAYS)
    def turn(self, count: int, verbs: list[str], delay: int) -> None:
        ends, expected = [], []
        for verb, name in zip(verbs, sorted(self.tokens), strict=False):
            ends.append(settle(verb, name, self.tokens[name], delay))
        for end in ends:
            job = self.model.jobs[end.job_id]
            expected.append(self.model.end(job, end.verb, delay, self.now))
            del self.tokens[end.job_id]
        turn = self.client.turn(self.queue, ends, count=count, now_ms_override=self.now)
        assert [end.status for end in turn.ended] == expected
        assert turn.paused == self.model.paused
        self._compare_leases(turn.jobs, 0 if self.model.paused else count)

    @rule(count=st.integers(1, 3))
    def reserve(self, count: int) -> None:
        jobs = self.client.reserve_many(self.queue, count, now_ms_override=self.now)
        assert isinstance(jobs, Paused) == self.model.paused
        if not isinstance(jobs, Paused):
            self._compare_leases(jobs, count)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), verb=VERBS, delay=DELAYS)
    def end_a_lease(self, data: st.DataObject, verb: str, delay: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        token = self.tokens.pop(name)
        end = settle(verb, name, token, delay)
        [ended] = self.client.settle(self.queue, [end], now_ms_override=self.now)
        assert ended.status == self.model.end(self.model.jobs[name], verb, delay, self.now)
        with pytest.raises(TokenMismatch):
            self.client.ack_success(self.queue, name, token)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        job = self.model.jobs[name]
        lock = self.client.heartbeat(self.queue, name, self.tokens[name], now_ms_override=self.now)
        job.lock_until = max(job.lock_until, self.now + job.timeout)
        assert lock == job.lock_until

    @rule(steps=st.sampled_from([1, 5, 25]))
    def time_passes(self, steps: int) -> None:
        self.now += steps

    @rule()
    def promote(self) -> None:
        moved = self.client.promote_delayed(self.queue, now_ms_override=self.now)
        assert moved == self.model.promote(self.now)

    @rule()
    def reap(self) -> None:
        reaped = self.client.reap_expired(self.queue, now_ms_override=self.now)
        assert reaped == self.model.reap(self.now)
        self.tokens = {
            name: token
            for name, token in self.tokens.items()
            if self.model.jobs[name].state == "active"
        }

    @rule(pause=st.booleans())
    def pause_or_resume(self, pause: bool) -> None:
        if pause:
            self.client.pause(self.queue)
        else:
            assert self.client.resume(self.queue) == int(self.model.paused)
        self.model.paused = pause

    @rule(name=NAMES)
    def retry_failed(self, name: str) -> None:
        job = self.model.jobs.get(name)
        code = None
        if job is None or job.state != "failed":
            code = "NO_JOB" if job is None else "NOT_FAILED"
        else:
            self.model.retry(job, self.now)
        assert code == code_of(self.client.retry_failed, self.queue, name, now=self.now)

    @rule(name=NAMES, lane=st.sampled_from(["wait", "gwait", "delayed", "failed", "completed"]))
    def remove(self, name: str, lane: Any) -> None:
        job = self.model.jobs.get(name)
        code = removal_code(job, lane)
        if job is not None and code is None:
            self.model.remove(job)
        assert code == code_of(self.client.remove_job, self.queue, name, lane)

    @rule()
    def repair(self) -> None:
        assert self.client.rebuild(self.queue, now_ms_override=self.now).groups_mended == 0

    @rule()
    def scripts_are_forgotten(self) -> None:
        self.raw.script_flush()

    @invariant()
    def the_queue_is_what_the_model_says(self) -> None:
        base = f"{{{self.queue}}}"
        check_invariants(self.raw, self.queue, mirrors=self.compat == "v4")
        assert self.raw.lrange(f"{base}:wait", 0, -1) == self.model.wait
        assert self.raw.lrange(f"{base}:failed", 0, -1) == self.model.failed
        assert self.raw.lrange(f"{base}:completed", 0, -1) == self.model.completed
        for gid, line in self.model.lines.items():
            assert self.raw.lrange(f"{base}:g:{gid}:wait", 0, -1) == line
        ready = dict(self.raw.zrange(f"{base}:groups:ready", 0, -1, withscores=True))
        assert ready == self.model.ready
        for job in self.model.jobs.values():
            state, attempt = self.raw.hmget(f"{base}:job:{job.job_id}", "state", "attempt")
            assert (state, int(attempt)) == (job.state, job.attempt)

    def _compare_leases(self, jobs: Any, count: int) -> None:
        expected = []
        for _ in range(count):
            job = self.model.reserve(self.now)
            if job is None:
                break
            expected.append((job.job_id, job.attempt, job.gid, job.lock_until))
        assert [(job.job_id, job.attempt, job.gid, job.lock_until_ms) for job in jobs] == expected
        self.tokens |= {job.job_id: job.lease_token for job in jobs}


def settle(verb: str, name: str, token: str, delay: int) -> Settle:
    return Settle(verb, name, token, delay if verb in ("retry", "snooze") else 0)


def code_of(call: Any, *args: Any, now: int = 0) -> str | None:
    try:
        call(*args, **({"now_ms_override": now} if now else {}))
    except OmniqError as error:
        return error.code
    return None


def removal_code(job: Job | None, lane: str) -> str | None:
    if job is None:
        return "NO_JOB"
    if job.state == "active":
        return "ACTIVE"
    if job.state != ("wait" if lane == "gwait" else lane) or (lane == "gwait" and not job.gid):
        return "LANE_MISMATCH"
    return "NOT_IN_LANE" if lane == "wait" and job.gid else None


@pytest.fixture(scope="module")
def machine_server() -> Iterator[EmbeddedRedis]:
    """A server of its own, for its scripts are flushed all the time."""
    with EmbeddedRedis() as server:
        yield server


def run(server: EmbeddedRedis, compat: Compat, examples: int, steps: int) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    machine = type("Queue", (Queue,), {"server": server, "compat": compat})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("compat", ["v1", "v4"])
def test_random_histories_keep_every_law(machine_server: EmbeddedRedis, compat: Compat) -> None:
    run(machine_server, compat, examples=25, steps=30)


@pytest.mark.slow
@pytest.mark.parametrize("compat", ["v1", "v4"])
def test_long_random_histories_keep_every_law(
    machine_server: EmbeddedRedis, compat: Compat
) -> None:
    run(machine_server, compat, examples=1000, steps=60)
