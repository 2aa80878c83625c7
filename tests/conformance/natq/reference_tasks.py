"""The tasks the suite asks for, as handlers of the reference worker, and the program of both.

python -m tests.conformance.natq.reference_tasks      # serves e2e-* and conf-* on $NATS_URL
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter

from tests.conformance.natq.reference_worker import Output, ReferenceWorker, Run

__all__ = ["register_all"]

_failures: Counter[str] = Counter()


def register_all(worker: ReferenceWorker) -> None:
    """The seven ``e2e-*`` tasks and all ``conf-*`` tasks of the package's page."""
    for task_id, handler in SYNC.items():
        worker.register(task_id, "sync", handler)
    for task_id, handler in ASYNC.items():
        worker.register(task_id, "async", handler)


async def add(run: Run) -> Output:
    return Output(200, {"sum": run.data["a"] + run.data["b"]})


async def echo(run: Run) -> Output:
    return Output(200, run.data)


async def client_error(run: Run) -> Output:
    return Output(400, error="Client requested failure")


async def delay(run: Run) -> Output:
    await asyncio.sleep(run.data.get("delayMs", 1000) / 1000)
    return Output(200, {"delayed": True})


async def retry(run: Run) -> Output:
    key, failures = str(run.run_id), run.data.get("failCount", 1)
    _failures[key] += 1
    attempt = _failures[key]
    if attempt <= failures:
        return Output(500, error=f"Intentional failure {attempt}/{failures}")
    del _failures[key]
    return Output(200, {"attempts": attempt})


async def async_client_error(run: Run) -> Output:
    return Output(400, error="Async client error")


async def drop_result(run: Run) -> Output:
    await asyncio.sleep(0.5)
    return Output(200, {"dropped": True})


async def reply(run: Run) -> Output:
    return Output(run.data.get("status", 200), run.data.get("data"), run.data.get("error"))


async def boom(run: Run) -> Output:
    raise RuntimeError("boom")


async def nothing(run: Run) -> Output:
    return None  # type: ignore[return-value]  # that is the point


async def unserializable(run: Run) -> Output:
    return Output(200, {1, 2, 3})


async def not_a_number(run: Run) -> Output:
    return Output(200, {"x": float("nan")})


async def big(run: Run) -> Output:
    return Output(200, "x" * run.data["bytes"])


async def sleep(run: Run) -> Output:
    await asyncio.sleep(run.data["ms"] / 1000)
    return Output(200, {"slept": run.data["ms"], "worker": run.worker_id})


async def ran(run: Run) -> Output:
    return Output(200, {"ran": True})


SYNC = {
    "e2e-add": add,
    "e2e-echo": echo,
    "e2e-client-error": client_error,
    "conf-echo": echo,
    "conf-reply": reply,
    "conf-raise-sync": boom,
    "conf-none-sync": nothing,
    "conf-unserializable-sync": unserializable,
    "conf-sleep-sync": sleep,
}
ASYNC = {
    "e2e-delay": delay,
    "e2e-retry": retry,
    "e2e-async-client-error": async_client_error,
    "e2e-drop-result": drop_result,
    "conf-echo-async": echo,
    "conf-reply-async": reply,
    "conf-raise": boom,
    "conf-none": nothing,
    "conf-unserializable": unserializable,
    "conf-nan": not_a_number,
    "conf-big": big,
    "conf-sleep": sleep,
    "conf-untouched": ran,
}


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    worker = ReferenceWorker()
    register_all(worker)
    asyncio.run(worker.serve(os.environ.get("NATS_URL", "nats://localhost:4222")))


if __name__ == "__main__":
    main()
