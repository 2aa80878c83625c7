"""Scenarios 27 to 29: the statistics and indexes of SDK 4.x, kept, neglected and repaired."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.sync_client import SyncOmniqClient
from tests.interop.omniq.conftest import OURS
from tests.interop.omniq.sides import Ours, Peer, Theirs, in_a_thread
from tests.interop.omniq.workload import Workload
from tests.protocols.omniq.invariants import check_invariants

STATES = ("wait", "active", "delayed", "failed", "completed")


@pytest.fixture(scope="module")
def new(interop_redis: EmbeddedRedis, open_peer: Callable[..., Peer]) -> Iterator[Peer]:
    """4.0.0, which keeps and reads mirrors."""
    running = open_peer("4.0.0", interop_redis.url)
    yield running
    running.close()


@pytest.fixture(scope="module")
def old(interop_redis: EmbeddedRedis, open_peer: Callable[..., Peer]) -> Iterator[Peer]:
    """1.7.0, which knows nothing of them."""
    running = open_peer("1.7.0", interop_redis.url)
    yield running
    running.close()


@pytest.fixture(params=OURS)
def ours_v4(
    request: pytest.FixtureRequest, interop_redis: EmbeddedRedis, raw: Any
) -> Iterator[Ours]:
    client = in_a_thread(OURS[request.param](interop_redis.url, compat="v4"))
    yield Ours(raw, client, mirrors=True)
    client.close()


@pytest.fixture(params=OURS)
def ours_v1(
    request: pytest.FixtureRequest, interop_redis: EmbeddedRedis, raw: Any
) -> Iterator[Ours]:
    kind: type[OmniqClient] | type[SyncOmniqClient] = OURS[request.param]
    client = in_a_thread(kind(interop_redis.url))
    yield Ours(raw, client, mirrors=False)
    client.close()


def in_truth(raw: Any, queue: str) -> dict[str, set[str]]:
    """State by state, the ids that the hashes themselves name."""
    prefix = f"{{{queue}}}:job:"
    found: dict[str, set[str]] = {state: set() for state in STATES}
    for key in raw.scan_iter(match=f"{prefix}*", count=1000):
        found[raw.hget(key, "state")].add(key.removeprefix(prefix))
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_27_mirrors_stay_true_while_both_work_and_their_monitor_shows_our_jobs(
    ours_v4: Ours, new: Peer, raw: Any, queue: str, seed: int
) -> None:
    Workload([ours_v4, Theirs(raw, new, mirrors=True)], queue, seed).run(120)
    mine = ours_v4.publish(queue, {"whose": "ours"}, gid="mine")
    truth = in_truth(raw, queue)

    stats = new.call("monitor.stats", queue=queue)
    assert stats["waiting_total"] == len(truth["wait"])
    assert [stats[name] for name in ("active", "delayed", "failed", "completed_kept")] == [
        len(truth[state]) for state in ("active", "delayed", "failed", "completed")
    ]
    for state in STATES:
        shown = [
            job["job_id"]
            for offset in range(0, len(truth[state]) + 1, 25)
            for job in new.call("monitor.lane_page", queue=queue, lane=state, offset=offset)
        ]
        assert len(shown) == len(truth[state])
        assert set(shown) == truth[state]
    [found] = new.call("monitor.find_jobs", queue=queue, lane="wait", job_ids=[mine])
    assert (found["job_id"], found["gid"]) == (mine, "mine")
    newest = new.call("monitor.lane_page", queue=queue, lane="wait", limit=25, reverse=True)
    assert mine in [job["job_id"] for job in newest]
    assert queue in new.call("monitor.scan_queues")
    assert new.call("monitor.overview", queue=queue)


def test_28_a_rebuild_repairs_what_1_7_neglects(
    ours_v4: Ours, old: Peer, new: Peer, raw: Any, queue: str
) -> None:
    neglecting = Theirs(raw, old, mirrors=False)
    caring = Theirs(raw, new, mirrors=True)
    for side in (ours_v4, caring):
        side.lawful = False  # until the rebuild; the other laws are looked at by the third
    Workload([ours_v4, caring, neglecting], queue, seed=4).run(120)
    with pytest.raises(AssertionError):
        check_invariants(raw, queue, mirrors=True, shared=True)

    ours_v4.client.rebuild(queue)

    check_invariants(raw, queue, mirrors=True, shared=True)
    stats = new.call("monitor.stats", queue=queue)
    truth = in_truth(raw, queue)
    assert stats["waiting_total"] == len(truth["wait"])
    assert stats["completed_kept"] == len(truth["completed"])
    ours_v4.lawful = caring.lawful = True
    caring.publish(queue, {}, gid="a")
    ours_v4.leased(queue)


@pytest.mark.parametrize("seed", [5, 6])
def test_29_without_mirrors_nothing_of_them_is_written_and_1_7_never_misses_it(
    ours_v1: Ours, old: Peer, raw: Any, queue: str, seed: int
) -> None:
    Workload([ours_v1, Theirs(raw, old, mirrors=False)], queue, seed).run(120)

    keys = set(raw.scan_iter(match=f"{{{queue}}}:*", count=1000))
    assert not [key for key in keys if ":idx:" in key or key.endswith(":stats")]
    assert not raw.exists("omniq:queues")
    counts = old.call("monitor.counts", queue=queue)
    truth = in_truth(raw, queue)
    assert [counts[state] for state in STATES[1:]] == [len(truth[state]) for state in STATES[1:]]
