"""Scenario 15: consumers of both sides on twenty groups, with failures and with deaths."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
import redis as redis_py

from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.protocols.omniq.store import Draft
from penstock.protocols.omniq.sync_client import SyncOmniqClient
from tests.interop.omniq import consumers
from tests.interop.omniq.consumers import Consumer, Fact
from tests.interop.omniq.peer_env import RegistryUnreachable, peer_python
from tests.protocols.omniq.invariants import check_invariants

GROUPS = 20
EACH = 4  # consumers of each side; ours run two jobs at once


@pytest.fixture(params=["1.7.0", pytest.param("4.0.0", marks=pytest.mark.slow)])
def version(request: pytest.FixtureRequest) -> str:
    try:
        peer_python(request.param)
    except RegistryUnreachable as error:
        pytest.skip(f"PyPI omniq {request.param} cannot be installed: {error}")
    return str(request.param)


@pytest.fixture
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as running:
        yield running


def started(server: EmbeddedRedis, queue: str, version: str, stack: ExitStack) -> list[Consumer]:
    """Both sides' consumers, ours first."""
    compat = "v4" if version.startswith("4") else "v1"
    every = [
        consumers.ours(server.url, queue, kind=kind, concurrency=2, compat=compat)
        for kind in ("asyncio", "threads") * (EACH // 2)
    ]
    every += [consumers.theirs(version, server.url, queue) for _ in range(EACH)]
    return [stack.enter_context(consumer) for consumer in every]


def drain(
    server: EmbeddedRedis, queue: str, every: Sequence[Consumer], jobs: int, *, kill: bool
) -> list[Fact]:
    """Let them work until nothing is left; the facts of all in the order of their instants."""
    base = f"{{{queue}}}"
    dice = random.Random(15)
    with redis_py.Redis.from_url(server.url, decode_responses=True) as raw:
        doomed = [dice.choice(every[:EACH]), dice.choice(every[EACH:])] if kill else []
        deadline = time.monotonic() + 90
        while not _over(raw, base):
            assert time.monotonic() < deadline, "the queue was never empty"
            if doomed and len(_facts(every, "finishing")) > jobs // 4:
                doomed.pop().kill()
            time.sleep(0.02)
        assert not doomed
        check_invariants(raw, queue, mirrors=False, shared=True)
        assert raw.llen(f"{base}:failed") == 0
    return _facts(every)


def _over(raw: Any, base: str) -> bool:
    return not raw.exists(f"{base}:active", f"{base}:delayed", f"{base}:groups:ready")


def _facts(every: Sequence[Consumer], *kinds: str) -> list[Fact]:
    facts = [fact for consumer in every for fact in consumer.facts(*kinds)]
    return sorted(facts, key=lambda fact: fact.at)


def most_at_once(every: Sequence[Consumer]) -> Counter[str]:
    """The largest number of handlers that each group ever had running."""
    changes: list[tuple[float, int, str]] = []
    for consumer in every:
        open_runs: dict[tuple[str, int], Fact] = {}
        for fact in consumer.facts():
            if fact.kind == "started":
                open_runs[fact.id, fact.attempt] = fact
            elif (begun := open_runs.pop((fact.id, fact.attempt), None)) is not None:
                changes += [(begun.at, 1, fact.gid), (fact.at, -1, fact.gid)]
        for fact in open_runs.values():
            assert consumer.killed_at is not None, f"{fact} never ended"
            changes += [(fact.at, 1, fact.gid), (consumer.killed_at, -1, fact.gid)]
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for _, step, gid in sorted(changes):
        running[gid] += step
        most[gid] = max(most[gid], running[gid])
    return most


def test_15_limits_hold_and_every_job_is_finished_whoever_dies(
    server: EmbeddedRedis, queue: str, version: str
) -> None:
    dice = random.Random(1)
    drafts = [
        Draft(
            payload={"sleep": dice.choice([0, 0.01, 0.03]), "fail": dice.choice([0, 0, 0, 1, 2])},
            job_id=f"{n}",
            gid=f"g{n % GROUPS}",
        )
        for n in range(400)
    ]
    with SyncOmniqClient(server.url) as client, ExitStack() as stack:
        client.pause(queue)  # until all are there: the first must not do it alone
        client.publish_many(
            queue, drafts, group_limit=3, max_attempts=9, backoff_ms=20, timeout_ms=5_000
        )
        every = started(server, queue, version, stack)
        client.resume(queue)
        facts = drain(server, queue, every, len(drafts), kill=True)

        most = most_at_once(every)
        assert max(most.values()) <= 3, most
        assert max(most.values()) == 3, "the limit was never reached: nothing was proved"
        finished = Counter(fact.id for fact in facts if fact.kind == "finishing")
        assert finished.keys() == {draft.job_id for draft in drafts}
        again = sum(count - 1 for count in finished.values())
        dead = sum(consumer.killed_at is not None for consumer in every)
        assert dead == 2
        assert again <= 3, "only what a dead one had finished and not acknowledged runs again"
        for side in (every[:EACH], every[EACH:]):
            assert sum(bool(consumer.facts("finishing")) for consumer in side) > 1


@pytest.mark.slow
def test_15_a_group_of_one_starts_its_jobs_in_the_order_of_their_publishing(
    server: EmbeddedRedis, queue: str, version: str
) -> None:
    with SyncOmniqClient(server.url) as client, ExitStack() as stack:
        drafts = [
            Draft(payload={"sleep": 0}, job_id=f"{n}", gid=f"g{n % GROUPS}") for n in range(400)
        ]
        client.pause(queue)
        client.publish_many(queue, drafts, group_limit=1)
        every = started(server, queue, version, stack)
        client.resume(queue)
        facts = drain(server, queue, every, len(drafts), kill=False)

        order: dict[str, list[int]] = defaultdict(list)
        for fact in facts:
            if fact.kind == "started":
                order[fact.gid].append(int(fact.id))
        assert len(order) == GROUPS
        assert all(ids == sorted(ids) and len(ids) == 20 for ids in order.values())
        assert max(most_at_once(every).values()) == 1
