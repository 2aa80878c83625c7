"""Scenario 33: retrying failed jobs costs the same however many wait; theirs search them all."""

from __future__ import annotations

from typing import Any

from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.protocols.omniq.sync_client import SyncOmniqClient

WAITING = 200_000
BOUND_MS = 20


def server_cpu_ms(raw: Any) -> float:
    """The processor time of Redis: unlike the clock on the wall, nobody else's load is in it."""
    used = raw.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"]) * 1000


def test_33_retrying_99_failed_jobs_behind_200_000_does_not_block_redis(
    interop_redis: EmbeddedRedis, raw: Any, queue: str
) -> None:
    base = f"{{{queue}}}"
    failed = [f"f{n}" for n in range(99)]
    with SyncOmniqClient(interop_redis.url) as client:
        for name in failed:
            client.publish(queue, {}, job_id=name, max_attempts=1)
        for job in client.reserve_many(queue, 99):
            client.ack_fail(queue, job.job_id, job.lease_token)
        assert raw.llen(f"{base}:failed") == 99
        for first in range(0, WAITING, 10_000):  # ids alone: that is all a search would walk
            raw.rpush(f"{base}:wait", *(f"w{n}" for n in range(first, first + 10_000)))

        before = server_cpu_ms(raw)
        answers = client.retry_failed_batch(queue, failed)
        spent = server_cpu_ms(raw) - before

        assert [item.status for item in answers] == ["OK"] * 99
        assert raw.llen(f"{base}:failed") == 0
        assert raw.lrange(f"{base}:wait", -99, -1) == failed
        assert spent < BOUND_MS, f"all slices together took {spent:.1f} ms"
    raw.delete(f"{base}:wait")
