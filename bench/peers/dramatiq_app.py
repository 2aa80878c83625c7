"""The Dramatiq application of the bench."""

from __future__ import annotations

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.peers.job_queues import address, counted

dramatiq.set_broker(RedisBroker(url=address()))


@dramatiq.actor(queue_name="bench")
def noop(n: int) -> None:
    del n
    counted()
