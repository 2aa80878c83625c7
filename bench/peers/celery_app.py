"""The Celery application of the bench; acknowledged late, as our jobs are."""

from __future__ import annotations

from celery import Celery

from bench.peers.job_queues import address, counted

app = Celery("bench", broker=address())
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=64, task_ignore_result=True)


@app.task
def noop(n: int) -> None:
    del n
    counted()
