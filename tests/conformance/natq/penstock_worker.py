"""Our own worker under test: the suite's tasks as Penstock handlers.

NATS_URL=nats://localhost:4222 python -m tests.conformance.natq.penstock_worker
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from penstock import App, Context, Reject, Retry
from penstock.core.outcome import Done

app = App("conformance")


def said(status: int, data: Any, error: str | None) -> Done:
    """An answer with a status of its own: below 300 it is done, the rest is refused or retried."""
    if status < 300:
        return Done(data, status=status)
    if status < 500:
        raise Reject(error or "refused", status=status, data=data)
    raise Retry(error or "later", status=status, data=data)


# The seven -------------------------------------------------------------------------------


@app.task(name="e2e-add", reply=True)
async def add(a: int, b: int) -> dict[str, int]:
    return {"sum": a + b}


@app.task(name="e2e-echo", reply=True, input="whole")
async def echo_object(data: Any = None) -> Any:
    return data


@app.task(name="e2e-client-error", reply=True, input="whole")
async def client_error(data: Any = None) -> None:
    raise Reject("Client requested failure", status=400)


@app.task(name="e2e-delay")
async def delay(delayMs: int = 1000) -> dict[str, bool]:
    await asyncio.sleep(delayMs / 1000)
    return {"delayed": True}


@app.task(name="e2e-retry")
async def retry(ctx: Context, failCount: int = 1) -> dict[str, int]:
    if ctx.attempt <= failCount:
        raise Retry(f"Intentional failure {ctx.attempt}/{failCount}", status=500)
    return {"attempts": ctx.attempt}


@app.task(name="e2e-async-client-error")
async def async_client_error() -> None:
    raise Reject("Async client error", status=400)


@app.task(name="e2e-drop-result")
async def drop_result() -> dict[str, bool]:
    await asyncio.sleep(0.5)
    return {"dropped": True}


# The suite's own -------------------------------------------------------------------------


@app.task(name="conf-echo", reply=True, input="whole")
async def echo(data: Any = None) -> Any:
    return data


@app.task(name="conf-echo-async", input="whole")
async def echo_async(data: Any = None) -> Any:
    return data


@app.task(name="conf-reply", reply=True)
async def reply(status: int = 200, data: Any = None, error: str | None = None) -> Any:
    return said(status, data, error)


@app.task(name="conf-reply-async")
async def reply_async(status: int = 200, data: Any = None, error: str | None = None) -> Any:
    return said(status, data, error)


@app.task(name="conf-raise-sync", reply=True)
async def raise_sync() -> None:
    raise RuntimeError("boom")


@app.task(name="conf-raise")
async def raise_async() -> None:
    raise RuntimeError("boom")


@app.task(name="conf-none-sync", reply=True)
async def none_sync() -> None:
    return None


@app.task(name="conf-none")
async def none_async() -> None:
    return None


@app.task(name="conf-unserializable-sync", reply=True)
async def unserializable_sync() -> Any:
    return object()


@app.task(name="conf-unserializable")
async def unserializable_async() -> Any:
    return object()


@app.task(name="conf-nan")
async def not_a_number() -> dict[str, float]:
    return {"x": float("nan")}


@app.task(name="conf-big")
async def big(bytes: int) -> str:
    return "x" * bytes


@app.task(name="conf-sleep-sync", reply=True)
async def sleep_sync(ms: int) -> dict[str, int]:
    await asyncio.sleep(ms / 1000)
    return {"slept": ms}


@app.task(name="conf-sleep")
async def sleep_async(ctx: Context, ms: int) -> dict[str, Any]:
    await asyncio.sleep(ms / 1000)
    return {"slept": ms, "worker": ctx.worker_id}


@app.task(name="conf-untouched", input="whole")
async def untouched(data: Any = None) -> dict[str, bool]:
    return {"ran": True}


def main() -> int:
    from penstock.app import serve
    from penstock.settings import load_settings

    return asyncio.run(serve(app, load_settings().settings, ["natq"]))


if __name__ == "__main__":
    sys.exit(main())
