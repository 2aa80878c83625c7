"""A worker that gets nearly everything wrong, so that the suite can be seen to notice.

python -m tests.conformance.natq.flawed_worker
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

import nats
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from tests.conformance.natq.reference_tasks import register_all
from tests.conformance.natq.reference_worker import (
    Handler,
    Output,
    ReferenceWorker,
    Run,
    Unreadable,
)

__all__ = ["FlawedWorker"]


class FlawedWorker(ReferenceWorker):
    """Each override is one kind of mistake a worker could plausibly make."""

    async def start(self, url: str) -> None:
        """Jobs that expire, a bucket with a memory, a consumer that gives up."""
        client = await nats.connect(url)
        js = client.jetstream()
        await js.create_key_value(bucket="natq_tasks", history=5)
        await js.add_stream(name="natq_jobs", subjects=["natq.job.>"], max_age=3600)
        config = ConsumerConfig(
            durable_name="natq_worker_e2e-delay",
            filter_subject="natq.job.e2e-delay",
            ack_policy=AckPolicy.EXPLICIT,
            max_deliver=3,
        )
        await js.add_consumer("natq_jobs", config)
        await client.close()
        await super().start(url)

    def _answering(self, task_id: str, handler: Handler) -> Callable[[Msg], Awaitable[None]]:
        """The whole output as body, and a header in capitals."""

        async def answer(message: Msg) -> None:
            output = await self._executed(task_id, handler, message.data)
            body = {"status": output.status, "data": repr(output.data), "error": output.error}
            headers = {"Status": str(output.status)}
            await self._client.publish(message.reply, json.dumps(body).encode(), headers=headers)

        return answer

    def _read(self, task_id: str, raw: bytes) -> Run:
        """Input that is not JSON is taken for an empty one."""
        try:
            return super()._read(task_id, raw)
        except Unreadable:
            return super()._read(task_id, b"{}")

    async def _put(self, key: str, record: dict[str, Any]) -> None:
        """Nobody is told that a job has started, nor whose result it is."""
        if record["status"] != 100:
            await super()._put(key, {**record, "taskId": "?"})

    async def _settle(self, message: Msg, key: str, run: Run, output: Output) -> None:
        """ACK before the record, a record of failures, a retry of rejected input, no backoff."""
        if output.status >= 300:
            await self._put(key, {"id": run.run_id, "status": output.status})
            await message.nak(delay=1)
            return
        await message.ack()
        await asyncio.sleep(0.05)
        await self._put(key, {"id": run.run_id, "status": output.status, "data": output.data})


def main() -> None:
    worker = FlawedWorker(heartbeat_seconds=60)
    register_all(worker)
    asyncio.run(worker.serve(os.environ["NATS_URL"]))


if __name__ == "__main__":
    main()
