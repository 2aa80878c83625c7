"""Workers: fetch, ack, nack, heartbeat. The hot paths of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from penstock.protocols.ojs.fields import members
from penstock.protocols.ojs.http.exchange import Exchange
from penstock.protocols.ojs.http.routing import Routes
from penstock.protocols.ojs.http.views import job_view
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.refusal import Refusal, Refused
from penstock.protocols.ojs.requests import (
    FetchRequest,
    parse_ack,
    parse_beat,
    parse_fetch,
    parse_nack,
)
from penstock.web.auth import Role
from penstock.web.message import Response

__all__ = ["WORKERS"]

WORKERS: Final = Routes("workers")
_raws: Final = msgspec.json.Decoder(list[Raw])


@WORKERS.on(
    "POST",
    "/ojs/v1/workers/fetch",
    "/ojs/v1/jobs/fetch",
    takes="FetchRequest",
    gives="FetchReply",
)
async def fetch(x: Exchange) -> Response:
    """Claim the next jobs of some queues; an empty list when there is nothing to do."""
    asked = parse_fetch(x.body(), x.desk.limits.max_fetch)
    if asked.wait_ms:
        claimed = await _claimed_by_a_live_client(x, asked)
    else:
        claimed = await x.engine.fetch(asked, tenant=x.tenant)
    return x.ok({"jobs": [_handed(record) for record in claimed]})


@WORKERS.on("POST", "/ojs/v1/workers/ack", takes="AckRequest", gives="Settled", statuses=(409, 413))
async def ack(x: Exchange) -> Response:
    """Report that a job is done."""
    body = x.body()
    if "acks" in body:
        return await _many(x, body["acks"], "acks")
    return _acked(x, await x.engine.ack(parse_ack(body)))


@WORKERS.on(
    "POST", "/ojs/v1/jobs/{id}/ack", takes="JobAckRequest?", gives="Settled", statuses=(409, 413)
)
async def ack_one(x: Exchange) -> Response:
    """Report that this job is done."""
    return _acked(x, await x.engine.ack(parse_ack(x.body_or_nothing(), x.job_id())))


@WORKERS.on("POST", "/ojs/v1/workers/nack", takes="NackRequest", gives="Settled", statuses=(409,))
async def nack(x: Exchange) -> Response:
    """Report that a job failed, or give it back."""
    return _nacked(x, await x.engine.nack(parse_nack(x.body())))


@WORKERS.on(
    "POST", "/ojs/v1/jobs/{id}/nack", takes="JobNackRequest?", gives="Settled", statuses=(409,)
)
async def nack_one(x: Exchange) -> Response:
    """Report that this job failed, or give it back."""
    return _nacked(x, await x.engine.nack(parse_nack(x.body_or_nothing(), x.job_id())))


@WORKERS.on(
    "POST",
    "/ojs/v1/workers/heartbeat",
    "/ojs/v1/workers/beat",
    takes="BeatRequest",
    gives="BeatReply",
)
async def heartbeat(x: Exchange) -> Response:
    """Say that a worker lives, and keep the jobs it names."""
    beat = await x.engine.heartbeat(parse_beat(x.body()))
    return x.ok(
        {
            "acknowledged": True,
            "ok": True,
            "state": beat.state,
            "jobs_extended": beat.extended,
            "cancelled_jobs": beat.cancelled,
            "server_time": beat.server_time,
            "heartbeat_interval": round(x.engine.options.heartbeat_interval.total_seconds()),
            "heartbeat_timeout": round(x.engine.options.heartbeat_timeout.total_seconds()),
            "visibility_timeout_default": round(
                x.engine.options.visibility_timeout.total_seconds()
            ),
        }
    )


@WORKERS.on("POST", "/ojs/v1/workers/progress", takes="Anything", gives="ProgressReply")
async def progress(x: Exchange) -> Response:
    """Report how far a job is, in percent."""
    fields = x.fields()
    job_id = fields.text("job_id", max_chars=128)
    if not job_id:
        raise fields.bad("job_id", "is required")
    percent = fields.number("percentage")
    noted = await x.engine.note_progress(
        job_id,
        value=None if percent is None else percent / 100,
        message=fields.text("message", max_chars=1000) or "",
        data=fields.raw.get("data"),
    )
    return x.refuse(noted) if isinstance(noted, Refusal) else x.ok({"job_id": job_id, "ok": True})


@WORKERS.on("GET", "/ojs/v1/workers/{id}/health", role=Role.VIEW, gives="Anything")
async def health(x: Exchange) -> Response:
    """Whether a worker takes work."""
    await x.engine.workers.table.barrier()
    found = x.engine.workers.get(x.request.params["id"])
    if isinstance(found, Refusal):
        return x.refuse(found)
    state = x.engine.workers.state_of(found)
    busy = state in ("running", "quiet")
    return x.ok({"worker_id": found.id, "state": state}, 200 if busy else 503)


async def _many(x: Exchange, raw: Raw, name: str) -> Response:
    """Our extension: ``{"acks": [{job_id, …}, …]}``, each with its own answer."""
    if bytes(raw)[:1] != b"[":
        raise Refused(Refusal("invalid_request", f"{name}: must be an array", {"field": name}))
    asked = [
        parse_ack(members(one, f"{name}[{index}]")) for index, one in enumerate(_raws.decode(raw))
    ]
    fates = await asyncio.gather(*map(x.engine.ack, asked))
    items: list[dict[str, Any]] = []
    for one, fate in zip(asked, fates, strict=True):
        if isinstance(fate, Refusal):
            items.append({"job_id": one.job_id, **fate.body()})
        else:
            items.append({"job_id": one.job_id, "state": fate.state})
    good = sum("error" not in item for item in items)
    return x.ok({"acknowledged": good, "failed": len(items) - good, "items": items})


async def _claimed_by_a_live_client(x: Exchange, asked: FetchRequest) -> list[Record]:
    """A fetch that waits; jobs that come after the client has hung up go back at no cost."""
    fetching = asyncio.create_task(x.engine.fetch(asked, tenant=x.tenant), name="ojs:fetch")
    gone = asyncio.ensure_future(_until(x.request.gone))
    try:
        await asyncio.wait([fetching, gone], return_when=asyncio.FIRST_COMPLETED)
        if fetching.done():
            return fetching.result()
        x.desk.errand(_given_back(x, fetching))
        return []
    finally:
        gone.cancel()


async def _given_back(x: Exchange, fetching: asyncio.Task[list[Record]]) -> None:
    await x.engine.give_back(await fetching)


async def _until(gone: Callable[[], Awaitable[Any]]) -> None:
    await gone()


def _handed(record: Record) -> Raw:
    """The job with the proof that it is the caller's, and what our own workers go on from."""
    more: dict[str, Any] = {}
    if record.held is not None:
        more["fence"] = record.held.fence
    if record.iteration:
        more["iteration"] = record.iteration
    if record.returned:
        more["returned"] = record.returned
    return job_view(record, **more)


def _acked(x: Exchange, done: Record | Refusal) -> Response:
    if isinstance(done, Refusal):
        return x.refuse(done)
    return x.ok(
        {
            "acknowledged": True,
            "id": done.id,
            "job_id": done.id,
            "state": done.state,
            "completed_at": done.job.completed_at,
            "job": job_view(done),
        }
    )


def _nacked(x: Exchange, done: Record | Refusal) -> Response:
    if isinstance(done, Refusal):
        return x.refuse(done)
    job = done.job
    content: dict[str, Any] = {
        "id": done.id,
        "job_id": done.id,
        "state": done.state,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
    }
    if done.state == "retryable":
        content |= {"next_attempt_at": job.next_attempt_at, "retry_delay_ms": job.retry_delay_ms}
    elif done.state == "discarded":
        content |= {"completed_at": job.completed_at, "discarded_at": job.discarded_at}
    return x.ok({**content, "job": job_view(done)})
