"""The taskiq application of the bench, on JetStream."""

from __future__ import annotations

from taskiq_nats import PullBasedJetStreamBroker

from bench.peers.job_queues import address, counted

broker = PullBasedJetStreamBroker(servers=address(), queue="bench", durable="bench")


@broker.task
async def noop(n: int) -> None:
    del n
    counted()
