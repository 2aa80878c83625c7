"""More random histories: bursts past what is kept, batches, rounds, fan-outs; and accidents.

`Longer` goes on where `test_histories` stops, against the same model, under every law of the
reference (section 2.2). `Accidents` has other hands in the keys: hashes that vanish, ids that are
queued twice or taken out of active, counters that lie. Nothing may ever raise what is not
a refusal, and one rebuild must bring every group back to work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis as redis_py
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.core.ids import short_token
from penstock.protocols.omniq.errors import OmniqError
from penstock.protocols.omniq.store import Draft, Settle
from penstock.protocols.omniq.sync_client import SyncOmniqClient
from penstock.protocols.omniq.wire import Compat, Paused
from tests.protocols.omniq.invariants import check_invariants, group_state
from tests.protocols.omniq.model import Job
from tests.protocols.omniq.stories import T
from tests.protocols.omniq.test_histories import DELAYS, GIDS, NAMES, VERBS, Queue, removal_code

KEPT = 100
LANES = st.sampled_from(["wait", "gwait", "delayed", "failed", "completed"])


class Longer(Queue):
    """The machine of `test_histories` with what it leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.fresh = 0
        self.children: dict[str, set[str]] = {}

    @rule(count=st.integers(1, 60), gid=GIDS, attempts=st.integers(1, 2))
    def publish_a_bulk(self, count: int, gid: str, attempts: int) -> None:
        names = self._fresh(count)
        drafts = [Draft(payload={"name": name}, job_id=name) for name in names]
        published = self.client.publish_many(
            self.queue,
            drafts,
            gid=gid,
            max_attempts=attempts,
            timeout_ms=20,
            backoff_ms=3,
            now_ms_override=self.now,
        )
        assert [(str(name), name.kept) for name in published] == [(name, False) for name in names]
        for name in names:
            assert self.model.publish(Job(name, gid, attempts, 20, 3), 0, 0, self.now)

    @precondition(lambda self: not self.model.paused)
    @rule(count=st.integers(20, 130), verb=st.sampled_from(["succeed", "reject", "retry"]))
    def a_busy_while(self, count: int, verb: str) -> None:
        """Many jobs through one consumer, more than are kept when they are completed."""
        for _ in range(count):
            jobs = self.client.reserve_many(self.queue, 4, now_ms_override=self.now)
            assert not isinstance(jobs, Paused)
            self._compare_leases(jobs, 4)
            if not jobs:
                return
            ends = [Settle(verb, job.job_id, job.lease_token, 30) for job in jobs]
            turn = self.client.turn(self.queue, ends, count=0, now_ms_override=self.now)
            told = [self.model.end(self.model.jobs[e.job_id], verb, 30, self.now) for e in ends]
            assert [ended.status for ended in turn.ended] == told
            for job in jobs:
                del self.tokens[job.job_id]
        assert self.raw.llen(f"{{{self.queue}}}:completed") <= KEPT

    @rule()
    def walk_a_round(self) -> None:
        """Promote and reap as consumers do, in one call."""
        tended = self.client.tend(self.queue, 1000, 1000, now_ms_override=self.now)
        assert (tended.promoted, tended.reaped) == (
            self.model.promote(self.now),
            self.model.reap(self.now),
        )
        self.tokens = {
            name: token
            for name, token in self.tokens.items()
            if self.model.jobs[name].state == "active"
        }

    @rule(data=st.data(), more=st.lists(NAMES, max_size=3))
    def retry_a_batch(self, data: st.DataObject, more: list[str]) -> None:
        failed = data.draw(st.lists(st.sampled_from(self.model.failed or ["?"]), max_size=5))
        expected = []
        for name in [*failed, *more]:
            job = self.model.jobs.get(name)
            if job is not None and job.state == "failed":
                self.model.retry(job, self.now)
                expected.append(None)
            else:
                expected.append("NO_JOB" if job is None else "NOT_FAILED")
        answers = self.client.retry_failed_batch(
            self.queue, [*failed, *more], now_ms_override=self.now
        )
        assert [item.reason for item in answers] == expected

    @rule(names=st.lists(NAMES, max_size=5), lane=LANES)
    def remove_a_batch(self, names: list[str], lane: Any) -> None:
        expected = []
        for name in names:
            job = self.model.jobs.get(name)
            code = removal_code(job, lane)
            if job is not None and code is None:
                self.model.remove(job)
            expected.append(code)
        answers = self.client.remove_jobs_batch(self.queue, lane, names)
        assert [item.reason for item in answers] == expected

    @rule(key=st.sampled_from("xy"), expected=st.integers(0, 3))
    def begin_a_fan_out(self, key: str, expected: int) -> None:
        code = None
        if expected <= 0:
            code = "BAD_EXPECTED"
        elif key in self.children:
            code = "ALREADY_INIT"
        else:
            self.children[key] = {f"{n}" for n in range(expected)}
        try:
            self.client.childs_init(f"{self.queue}-{key}", expected)
        except OmniqError as error:
            assert error.code == code
        else:
            assert code is None

    @rule(key=st.sampled_from("xy"), child=st.sampled_from("012"))
    def count_a_child(self, key: str, child: str) -> None:
        left = self.children.get(key)
        if left is None:
            expected = -1
        else:
            left.discard(child if child in left else next(iter(left)))
            expected = len(left)
        if left is not None and child not in left and expected == 0:
            del self.children[key]
        answer = self.client.child_ack(f"{self.queue}-{key}", f"{child}-{short_token()}")
        assert answer == expected

    def _fresh(self, count: int) -> list[str]:
        self.fresh += count
        return [f"n{n}" for n in range(self.fresh - count, self.fresh)]


class Accidents(RuleBasedStateMachine):
    """Other hands in the keys. What it costs is the jobs they hit, and never a group."""

    server: EmbeddedRedis
    compat: Compat = "v1"

    def __init__(self) -> None:
        super().__init__()
        self.queue = f"a-{short_token()}"
        self.base = f"{{{self.queue}}}"
        self.client = SyncOmniqClient(self.server.url, compat=self.compat)
        self.raw: Any = redis_py.Redis.from_url(self.server.url, decode_responses=True)
        self.now = T
        self.held: dict[str, str] = {}

    def teardown(self) -> None:
        try:
            self.everything_heals()
        finally:
            self.client.close()
            self.raw.close()

    @rule(name=NAMES, gid=GIDS, limit=st.integers(0, 3), later=st.sampled_from([0, 0, 8]))
    def publish(self, name: str, gid: str, limit: int, later: int) -> None:
        self.client.publish(
            self.queue,
            {},
            job_id=name,
            gid=gid,
            group_limit=limit,
            timeout_ms=20,
            backoff_ms=3,
            due_ms=self.now + later,
            now_ms_override=self.now,
        )

    @rule(count=st.integers(1, 4))
    def reserve(self, count: int) -> None:
        jobs = self.client.reserve_many(self.queue, count, now_ms_override=self.now)
        assert isinstance(jobs, list)
        for job in jobs:
            assert job.payload == "{}", "a ghost was leased"
            self.held[job.job_id] = job.lease_token

    @precondition(lambda self: self.held)
    @rule(data=st.data(), verb=VERBS, delay=DELAYS)
    def end(self, data: st.DataObject, verb: str, delay: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        end = Settle(verb, name, self.held.pop(name), delay)
        [ended] = self.client.settle(self.queue, [end], now_ms_override=self.now)
        assert ended.status in ("OK", "RETRY", "FAILED", "TOKEN_MISMATCH", "NOT_ACTIVE")

    @rule(steps=st.sampled_from([1, 9, 25]))
    def time_passes_and_rounds_are_walked(self, steps: int) -> None:
        self.now += steps
        self.client.tend(self.queue, 1000, 1000, now_ms_override=self.now)

    @rule(name=NAMES)
    def a_hash_vanishes(self, name: str) -> None:
        self.raw.delete(f"{self.base}:job:{name}")

    @rule(name=NAMES)
    def an_id_is_taken_out_of_active(self, name: str) -> None:
        self.raw.zrem(f"{self.base}:active", name)

    @rule(name=NAMES, gid=GIDS)
    def an_id_is_queued_twice(self, name: str, gid: str) -> None:
        lane = f"g:{gid}:wait" if gid else "wait"
        self.raw.rpush(f"{self.base}:{lane}", name)

    @rule(gid=st.sampled_from("ab"), lie=st.integers(-2, 5))
    def a_counter_lies(self, gid: str, lie: int) -> None:
        self.raw.set(f"{self.base}:g:{gid}:inflight", lie)

    @rule(gid=st.sampled_from("ab"), there=st.booleans())
    def readiness_lies(self, gid: str, there: bool) -> None:
        if there:
            self.raw.zadd(f"{self.base}:groups:ready", {gid: self.now})
        else:
            self.raw.zrem(f"{self.base}:groups:ready", gid)

    def everything_heals(self) -> None:
        """All leases lapse, one rebuild; then every job that is still whole can be had."""
        self.now += 3_600_000
        for _ in range(5):  # a lapsed lease is delayed, then waits
            self.client.tend(self.queue, 1000, 1000, now_ms_override=self.now)
            self.now += 1_000
        self.client.rebuild(self.queue, now_ms_override=self.now)
        for gid, (waiting, inflight, limit) in group_state(self.raw, self.base).items():
            assert inflight == 0
            ready = self.raw.zscore(f"{self.base}:groups:ready", gid) is not None
            assert ready == (waiting > 0 and limit > 0)
        for _ in range(500):
            job = self.client.reserve(self.queue, now_ms_override=self.now)
            if job is None:
                if not self._someone_waits():
                    break
                continue  # nothing but ghosts in what one call looks at
            assert not isinstance(job, Paused)
            self.client.ack_success(
                self.queue, job.job_id, job.lease_token, now_ms_override=self.now
            )
        assert not self._someone_waits(), "jobs wait that nobody can have"
        assert self.raw.zcard(f"{self.base}:active") == 0

    def _someone_waits(self) -> bool:
        groups = group_state(self.raw, self.base).values()
        return bool(self.raw.llen(f"{self.base}:wait")) or any(waiting for waiting, _, _ in groups)


@pytest.fixture(scope="module")
def machine_server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


def run(
    machine: type[RuleBasedStateMachine],
    server: EmbeddedRedis,
    compat: Compat,
    examples: int,
    steps: int,
) -> None:
    made = type(machine.__name__, (machine,), {"server": server, "compat": compat})
    run_state_machine_as_test(
        made,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("compat", ["v1", "v4"])
def test_bursts_batches_and_rounds_keep_every_law(
    machine_server: EmbeddedRedis, compat: Compat
) -> None:
    run(Longer, machine_server, compat, examples=8, steps=20)


@pytest.mark.parametrize("compat", ["v1", "v4"])
def test_no_accident_stops_a_group_for_ever(machine_server: EmbeddedRedis, compat: Compat) -> None:
    run(Accidents, machine_server, compat, examples=40, steps=25)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("machine", [Longer, Accidents])
@pytest.mark.parametrize("compat", ["v1", "v4"])
def test_long_ones(
    machine_server: EmbeddedRedis, compat: Compat, machine: type[RuleBasedStateMachine]
) -> None:
    run(machine, machine_server, compat, examples=300, steps=50)


def test_more_than_a_hundred_completions_keep_the_last_hundred(
    machine_server: EmbeddedRedis,
) -> None:
    queue = f"t-{short_token()}"
    with (
        SyncOmniqClient(machine_server.url, compat="v4") as client,
        redis_py.Redis.from_url(machine_server.url, decode_responses=True) as raw,
    ):
        ids = client.publish_many(queue, [{}] * 130)
        jobs = client.reserve_many(queue, 130)
        assert isinstance(jobs, list)
        client.settle(queue, [Settle.succeed(job.job_id, job.lease_token) for job in jobs])

        assert raw.lrange(f"{{{queue}}}:completed", 0, -1) == ids[:29:-1]
        check_invariants(raw, queue, mirrors=True)
