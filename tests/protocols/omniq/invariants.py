"""The laws of an OmniQ queue, checked against the keys themselves (reference, section 2.2)."""

from __future__ import annotations

from collections import Counter
from typing import Any

__all__ = ["check_invariants", "group_state"]


def check_invariants(
    redis: Any, queue: str, *, mirrors: bool = False, shared: bool = False
) -> None:
    """Raise AssertionError unless every law holds. ``redis`` is a blocking client that decodes.

    On a queue ``shared`` with other SDKs our private notes may lag behind: they do not know them.
    """
    base = queue if "{" in queue else f"{{{queue}}}"
    places = _places(redis, base)
    jobs = _jobs(redis, base)
    for job_id, job in jobs.items():
        where = places.pop(job_id, [])
        assert where == [_expected_place(job)], f"{job_id} is {job['state']} and stands in {where}"
    assert not places, f"ids without a job: {places}"
    _check_groups(redis, base, jobs)
    _check_leases(redis, base, jobs)
    if not shared:
        running = {job_id for job_id, job in jobs.items() if job["state"] == "active"}
        assert set(redis.hkeys(f"{base}:x:leased")) <= running
    assert redis.llen(f"{base}:completed") <= 100
    assert not redis.exists(f"{base}:meta"), "the anchor was created"
    if mirrors:
        _check_mirrors(redis, base, jobs)


def group_state(redis: Any, base: str) -> dict[str, tuple[int, int, int]]:
    """gid → (waiting, in flight, limit) for every group that has a key."""
    gids = {key.removeprefix(f"{base}:g:").rpartition(":")[0] for key in _keys(redis, f"{base}:g:")}
    state = {}
    for gid in gids:
        group = f"{base}:g:{gid}"
        limit = int(redis.get(f"{group}:limit") or 1)
        state[gid] = (redis.llen(f"{group}:wait"), int(redis.get(f"{group}:inflight") or 0), limit)
    return state


def _places(redis: Any, base: str) -> dict[str, list[str]]:
    places: dict[str, list[str]] = {}
    for lane in ("wait", "failed", "completed"):
        for job_id in redis.lrange(f"{base}:{lane}", 0, -1):
            places.setdefault(job_id, []).append(lane)
    for lane in ("active", "delayed"):
        for job_id in redis.zrange(f"{base}:{lane}", 0, -1):
            places.setdefault(job_id, []).append(lane)
    for gid in group_state(redis, base):
        for job_id in redis.lrange(f"{base}:g:{gid}:wait", 0, -1):
            places.setdefault(job_id, []).append(f"group {gid}")
    return places


def _jobs(redis: Any, base: str) -> dict[str, dict[str, str]]:
    prefix = f"{base}:job:"
    return {key.removeprefix(prefix): redis.hgetall(key) for key in _keys(redis, prefix)}


def _expected_place(job: dict[str, str]) -> str:
    if job["state"] == "wait" and job.get("gid"):
        return f"group {job['gid']}"
    return job["state"]


def _check_groups(redis: Any, base: str, jobs: dict[str, dict[str, str]]) -> None:
    running = Counter(
        job["gid"] for job in jobs.values() if job["state"] == "active" and job.get("gid")
    )
    ready = set(redis.zrange(f"{base}:groups:ready", 0, -1))
    groups = group_state(redis, base)
    for gid, (waiting, inflight, limit) in groups.items():
        assert inflight == running.pop(gid, 0), f"group {gid} counts {inflight} in flight"
        able = waiting > 0 and inflight < max(limit, 1)
        assert (gid in ready) == able, f"group {gid}: {waiting} wait, {inflight} of {limit} run"
    assert not running, f"running jobs without a count: {running}"
    assert ready <= set(groups)


def _check_leases(redis: Any, base: str, jobs: dict[str, dict[str, str]]) -> None:
    for job_id, score in redis.zrange(f"{base}:active", 0, -1, withscores=True):
        job = jobs[job_id]
        assert int(score) == int(job["lock_until_ms"])
        assert job["lease_token"]
    for job_id, job in jobs.items():
        for name in ("attempt", "max_attempts", "timeout_ms", "created_ms", "updated_ms"):
            assert job[name].isdigit(), f"{name} of {job_id} is {job[name]!r}"
        if job["state"] != "active":
            assert not job.get("lease_token"), f"{job_id} is {job['state']} and has a token"


def _check_mirrors(redis: Any, base: str, jobs: dict[str, dict[str, str]]) -> None:
    for state in ("wait", "active", "delayed", "failed", "completed"):
        true = {job_id for job_id, job in jobs.items() if job["state"] == state}
        kept = set(redis.zrange(f"{base}:idx:{state}", 0, -1))
        assert kept == true, f"idx:{state} has {kept}, in truth {true}"
    grouped = sum(waiting for waiting, _, _ in group_state(redis, base).values())
    waiting = redis.llen(f"{base}:wait")
    true_stats = {
        "waiting": waiting,
        "group_waiting": grouped,
        "waiting_total": waiting + grouped,
        "active": redis.zcard(f"{base}:active"),
        "delayed": redis.zcard(f"{base}:delayed"),
        "failed": redis.llen(f"{base}:failed"),
        "completed_kept": redis.llen(f"{base}:completed"),
        "groups_ready": redis.zcard(f"{base}:groups:ready"),
    }
    stats = redis.hgetall(f"{base}:stats")
    kept_stats = {name: int(stats.get(name, 0)) for name in true_stats}
    assert kept_stats == true_stats


def _keys(redis: Any, prefix: str) -> set[str]:
    escaped = "".join(f"\\{char}" if char in "*?[]\\" else char for char in prefix)
    return set(redis.scan_iter(match=f"{escaped}*", count=1000))
