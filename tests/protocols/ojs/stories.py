"""Short words for what clients and workers do, so that stories read as stories."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.fields import object_of
from penstock.protocols.ojs.intake import Pushed
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.refusal import Refusal
from penstock.protocols.ojs.requests import (
    AckRequest,
    BeatRequest,
    ErrorGiven,
    FetchRequest,
    Holding,
    NackRequest,
)

TOP = ("args", "meta", "id")


def asked(engine: Engine, job_type: str = "mail", **options: Any) -> Any:
    top = {k: options.pop(k) for k in TOP if k in options}
    body = {"type": job_type, "args": [], **top, "options": options}
    return engine.submission(object_of(msgspec.json.encode(body)))


async def try_push(engine: Engine, job_type: str = "mail", **options: Any) -> Pushed | Refusal:
    return await engine.push(asked(engine, job_type, **options))


async def push(engine: Engine, job_type: str = "mail", **options: Any) -> Record:
    pushed = await try_push(engine, job_type, **options)
    assert isinstance(pushed, Pushed), pushed
    return pushed.record


async def fetch(engine: Engine, *queues: str, count: int = 1, **more: Any) -> list[Record]:
    asked_ = FetchRequest(queues=queues or ("default",), count=count, **more)
    return await engine.fetch(asked_)


async def take(engine: Engine, *queues: str, **more: Any) -> Record:
    """The next job; it may be on its way."""
    records = await fetch(engine, *queues, **{"wait_ms": 20_000, **more})
    assert records, "nothing came"
    return records[0]


async def ack(engine: Engine, job_id: str, result: Any = None, **hold: Any) -> Record | Refusal:
    raw = None if result is None else Raw(msgspec.json.encode(result))
    return await engine.ack(AckRequest(job_id=job_id, holding=Holding(**hold), result=raw))


async def nack(engine: Engine, job_id: str, **more: Any) -> Record | Refusal:
    hold = {k: more.pop(k) for k in ("worker", "attempt", "fence") if k in more}
    error = ErrorGiven(**{k: more.pop(k) for k in ("code", "retryable") if k in more})
    return await engine.nack(
        NackRequest(job_id=job_id, error=error, holding=Holding(**hold), **more)
    )


async def beat(engine: Engine, worker: str, *job_ids: str, **more: Any) -> Any:
    return await engine.heartbeat(BeatRequest(worker=worker, job_ids=job_ids, **more))


async def info(engine: Engine, job_id: str) -> Record:
    found = await engine.info(job_id)
    assert isinstance(found, Record), found
    return found


async def state(engine: Engine, job_id: str) -> str:
    return (await info(engine, job_id)).state
