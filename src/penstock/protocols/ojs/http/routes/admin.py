"""The operator's door: everything at a glance, bulk actions, workers. Answers are flat."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from penstock.protocols.ojs.http.choosing import (
    bulk_view,
    chosen_in_body,
    chosen_in_query,
)
from penstock.protocols.ojs.http.exchange import Exchange
from penstock.protocols.ojs.http.routing import Routes
from penstock.protocols.ojs.http.views import job_view
from penstock.protocols.ojs.instants import instant_text, of_ms
from penstock.protocols.ojs.queues import shown_config
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.refusal import Refusal, Refused, not_found, wrong_state
from penstock.protocols.ojs.views import JobPage, QueueView
from penstock.protocols.ojs.workers import WorkerRow
from penstock.web.auth import Role
from penstock.web.message import Response

__all__ = ["ADMIN"]

ADMIN: Final = Routes("admin")
_AT: Final = "/ojs/v1/admin"
_PAGE: Final = ("page", "per_page")
_FILTER: Final = ("queue", "state", "type", "since", "until")
_WORKER: Final = f"{_AT}/workers/{{id}}"
_MOST: Final = 10_000


class _Page(Struct, frozen=True):
    number: int
    size: int

    @property
    def skip(self) -> int:
        return (self.number - 1) * self.size

    def of(self, total: int) -> dict[str, int]:
        return {"total": total, "page": self.number, "per_page": self.size}


@ADMIN.on("GET", f"{_AT}/stats", role=Role.VIEW)
async def stats(x: Exchange) -> Response:
    """Jobs by state, queues and workers."""
    totals = await x.engine.totals()
    return x.ok(
        {
            "queues": totals.queues,
            "workers": totals.workers,
            "jobs": totals.jobs,
            "dead_letters": totals.dead_letters,
            "uptime_seconds": round(totals.uptime_s, 3),
        }
    )


# Queues -------------------------------------------------------------------------------


@ADMIN.on("GET", f"{_AT}/queues", role=Role.VIEW, query=_PAGE)
async def queues(x: Exchange) -> Response:
    """Every queue with its counters."""
    page, found = _page(x), await x.engine.queues()
    items = [_queue(view) for view in found[page.skip : page.skip + page.size]]
    return x.ok({"items": items, "pagination": page.of(len(found))})


@ADMIN.on("GET", f"{_AT}/queues/{{name}}", role=Role.VIEW)
async def queue(x: Exchange) -> Response:
    """One queue with its counters and settings."""
    view = await x.engine.queue(x.queue())
    configuration = {} if view.settings is None else shown_config(view.settings)
    return x.ok({**_queue(view), "configuration": configuration})


@ADMIN.on("POST", f"{_AT}/queues/{{name}}/pause", takes="Anything?")
async def pause(x: Exchange) -> Response:
    """Hand out nothing from a queue until it is resumed."""
    return x.ok(_queue(await x.engine.pause(x.queue())))


@ADMIN.on("POST", f"{_AT}/queues/{{name}}/resume", takes="Anything?")
async def resume(x: Exchange) -> Response:
    """Hand out jobs again."""
    return x.ok(_queue(await x.engine.resume(x.queue())))


# Jobs ---------------------------------------------------------------------------------


@ADMIN.on("GET", f"{_AT}/jobs", role=Role.VIEW, query=(*_FILTER, *_PAGE))
async def jobs(x: Exchange) -> Response:
    """Jobs by queue, state and type."""
    page = _page(x)
    chosen = msgspec.structs.replace(
        chosen_in_query(x).query, cursor="", limit=page.size, offset=page.skip
    )
    found = await x.engine.jobs(chosen)
    return _listing(x, found, page)


@ADMIN.on("GET", f"{_AT}/jobs/{{id}}", role=Role.VIEW, gives="Job")
async def job(x: Exchange) -> Response:
    """One job, flat."""
    return _flat(x, await x.engine.info(x.job_id(), tenant=x.tenant))


@ADMIN.on("POST", f"{_AT}/jobs/{{id}}/cancel", takes="Anything?", gives="Job", statuses=(409,))
async def cancel(x: Exchange) -> Response:
    """Cancel a job that is not over."""
    return _flat(x, await x.engine.cancel(await x.own_job(), by="admin"))


@ADMIN.on("POST", f"{_AT}/jobs/{{id}}/retry", takes="Anything?", gives="Job", statuses=(409,))
async def retry(x: Exchange) -> Response:
    """Give a discarded or cancelled job another life."""
    return _flat(x, await x.engine.redrive(await x.own_job()))


@ADMIN.on("POST", f"{_AT}/jobs/bulk/retry", role=Role.ADMIN, takes="Anything")
async def retry_many(x: Exchange) -> Response:
    """Give every discarded or cancelled job that fits another life."""
    ids = await _chosen_ids(x, ("discarded", "cancelled"))
    done = await x.engine.dead_letters.for_each(ids, x.engine.redrive)
    return x.ok({"action": "retry", **bulk_view(done)})


@ADMIN.on("POST", f"{_AT}/jobs/bulk/cancel", role=Role.ADMIN, takes="Anything")
async def cancel_many(x: Exchange) -> Response:
    """Cancel every job that fits and is not over."""

    async def cancelled(job_id: str) -> Record | Refusal:
        return await x.engine.cancel(job_id, by="admin")

    ids = await _chosen_ids(x, ("scheduled", "available", "pending", "retryable", "active"))
    done = await x.engine.dead_letters.for_each(ids, cancelled)
    return x.ok({"action": "cancel", **bulk_view(done)})


@ADMIN.on("POST", f"{_AT}/jobs/bulk/delete", role=Role.ADMIN, takes="Anything")
async def delete_many(x: Exchange) -> Response:
    """Remove every finished job that fits."""
    ids = await _chosen_ids(x, ("completed", "cancelled", "discarded"))
    done = await x.engine.dead_letters.for_each(ids, x.engine.delete)
    return x.ok({"action": "delete", **bulk_view(done)})


# Workers ------------------------------------------------------------------------------


@ADMIN.on("GET", f"{_AT}/workers", role=Role.VIEW, query=_PAGE)
async def workers(x: Exchange) -> Response:
    """Every worker that has sent a heartbeat."""
    page, found = _page(x), await x.engine.workers.listed()
    states = [x.engine.workers.state_of(row) for row in found]
    items = [_worker(x, row) for row in found[page.skip : page.skip + page.size]]
    summary = {
        "total": len(found),
        **{state: states.count(state) for state in ("running", "quiet", "stale")},
    }
    return x.ok({"items": items, "summary": summary, "pagination": page.of(len(found))})


@ADMIN.on("GET", _WORKER, role=Role.VIEW)
async def worker(x: Exchange) -> Response:
    """One worker."""
    await x.engine.workers.table.barrier()
    found = x.engine.workers.get(x.request.params["id"])
    return x.refuse(found) if isinstance(found, Refusal) else x.ok(_worker(x, found))


@ADMIN.on("POST", f"{_WORKER}/quiet", takes="Anything?")
async def quiet(x: Exchange) -> Response:
    """Tell a worker to take no more jobs."""
    return await _told(x, "quiet")


@ADMIN.on("POST", f"{_WORKER}/terminate", takes="Anything?")
async def terminate(x: Exchange) -> Response:
    """Tell a worker to finish what it has and end."""
    return await _told(x, "terminate")


@ADMIN.on("POST", f"{_WORKER}/resume", takes="Anything?")
async def go_on(x: Exchange) -> Response:
    """Tell a worker that it may take jobs again."""
    return await _told(x, "running")


@ADMIN.on("DELETE", _WORKER, role=Role.ADMIN, statuses=(409,))
async def forget(x: Exchange) -> Response:
    """Forget a worker that has gone silent."""
    name = x.request.params["id"]
    await x.engine.workers.table.barrier()
    found = x.engine.workers.get(name)
    if isinstance(found, Refusal):
        return x.refuse(found)
    state = x.engine.workers.state_of(found)
    if state != "stale":
        return x.refuse(wrong_state("forget", name, state, "stale"))
    await x.engine.workers.remove(name)
    return x.ok({"deleted": True, "worker_id": name})


# Dead letters -------------------------------------------------------------------------


@ADMIN.on("GET", f"{_AT}/dead-letter", role=Role.VIEW, query=(*_FILTER, "error_type", *_PAGE))
async def dead_letters(x: Exchange) -> Response:
    """Dead letters, newest first."""
    page, chosen = _page(x), chosen_in_query(x)
    query = msgspec.structs.replace(chosen.query, cursor="", limit=page.size, offset=page.skip)
    found = await x.engine.dead_letters.page(query, error_type=chosen.error_type)
    return _listing(x, found, page)


@ADMIN.on("GET", f"{_AT}/dead-letter/stats", role=Role.VIEW)
async def dead_letter_stats(x: Exchange) -> Response:
    """How many dead letters there are."""
    found = await x.engine.dead_letters.stats()
    return x.ok(
        {
            "total": found.total,
            "by_queue": found.by_queue,
            "by_error_type": found.by_error_type,
        }
    )


@ADMIN.on(
    "POST", f"{_AT}/dead-letter/{{id}}/retry", takes="Anything?", gives="Job", statuses=(409,)
)
async def retry_dead(x: Exchange) -> Response:
    """Give a dead letter another life."""
    return _flat(x, await x.engine.dead_letters.retry(await x.own_job()))


@ADMIN.on("DELETE", f"{_AT}/dead-letter/{{id}}", success=(204,), statuses=(409,))
async def drop_dead(x: Exchange) -> Response:
    """Delete a dead letter for good."""
    done = await x.engine.dead_letters.delete(await x.own_job())
    return x.refuse(done) if isinstance(done, Refusal) else x.nothing()


# Test runs ----------------------------------------------------------------------------


@ADMIN.on("POST", f"{_AT}/reset", role=Role.ADMIN, takes="Anything?")
async def reset(x: Exchange) -> Response:
    """Remove everything. Only where the server runs for conformance tests."""
    if not x.desk.options.conformance:
        raise Refused(not_found("path", x.request.path))
    await x.engine.reset()
    await x.desk.schemas.fresh()
    return x.ok({"reset": True})


# Helpers ------------------------------------------------------------------------------


def _page(x: Exchange) -> _Page:
    return _Page(x.number("page", 1, 1, 10**6), x.number("per_page", 20, 1, 100))


async def _chosen_ids(x: Exchange, states: tuple[str, ...]) -> list[str]:
    """Ids of what a confirmed filter means, among the states that the action is for."""
    query = chosen_in_body(x).query
    wanted = tuple(s for s in query.states if s in states) if query.states else states
    if not wanted:
        return []
    found = await x.engine.jobs(msgspec.structs.replace(query, states=wanted, limit=_MOST))
    return [record.id for record in found.jobs]


async def _told(x: Exchange, state: str) -> Response:
    done = await x.engine.workers.wish(x.request.params["id"], state)
    return x.refuse(done) if isinstance(done, Refusal) else x.ok(_worker(x, done))


def _listing(x: Exchange, found: JobPage, page: _Page) -> Response:
    return x.ok(
        {"items": [_summary(one) for one in found.jobs], "pagination": page.of(found.total)}
    )


def _flat(x: Exchange, found: Record | Refusal) -> Response:
    return x.refuse(found) if isinstance(found, Refusal) else x.ok(_whole(found))


def _whole(record: Record) -> Raw:
    job = record.job
    times = {
        name: value
        for name in ("created_at", "enqueued_at", "started_at", "completed_at", "discarded_at")
        if (value := getattr(job, name))
    }
    return job_view(record, retry_policy=job.retry, metadata={"timestamps": times})


def _summary(record: Record) -> dict[str, Any]:
    job = record.job
    return {
        "id": job.id,
        "type": job.type,
        "queue": job.queue,
        "state": job.state,
        "priority": job.priority,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "created_at": job.created_at,
        "enqueued_at": job.enqueued_at,
        "error": None if not job.errors else job.errors[-1],
    }


def _queue(view: QueueView) -> dict[str, Any]:
    return {
        "name": view.name,
        "state": "paused" if view.paused else "active",
        "paused": view.paused,
        "counts": view.counts,
        "depth": view.depth,
        "created_at": view.settings.created_at if view.settings is not None else None,
        "paused_at": view.settings.paused_at or None if view.settings is not None else None,
    }


def _worker(x: Exchange, row: WorkerRow) -> dict[str, Any]:
    about = {name: msgspec.json.decode(raw) for name, raw in row.about.items()}
    return {
        "id": row.id,
        "hostname": about.get("hostname"),
        "state": x.engine.workers.state_of(row),
        "queues": list(row.queues),
        "concurrency": about.get("concurrency"),
        "active_jobs": row.active,
        "started_at": about.get("started_at") or instant_text(of_ms(row.first_ms)),
        "last_heartbeat_at": instant_text(of_ms(row.last_ms)),
        "version": about.get("version"),
        "metadata": about,
    }
