"""Jobs: enqueue one or many, look, cancel, activate, reprioritise."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw

from penstock.protocols.ojs.envelope import Submission, too_large
from penstock.protocols.ojs.fields import members
from penstock.protocols.ojs.http.exchange import Exchange
from penstock.protocols.ojs.http.routing import Routes
from penstock.protocols.ojs.http.views import job_view, limit_headers, pressure_headers
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.refusal import Refusal, Refused, invalid
from penstock.web.auth import Role
from penstock.web.message import Response

__all__ = ["JOBS"]

JOBS: Final = Routes("jobs")
_ONE: Final = "/ojs/v1/jobs/{id}"
_raws: Final = msgspec.json.Decoder(list[Raw])


@JOBS.on(
    "POST",
    "/ojs/v1/jobs",
    takes="JobRequest",
    gives="JobReply",
    success=(201, 200),
    statuses=(409, 422, 429),
)
async def enqueue(x: Exchange) -> Response:
    """Enqueue a job: durable when the answer is there."""
    submission = _submission(x, x.body(), len(x.request.body))
    warnings = x.desk.checked(submission)
    made = await x.engine.push(submission, block_s=_block_seconds(x))
    if isinstance(made, Refusal):
        return x.refuse(made)
    record = made.record
    content: dict[str, Any] = {
        "job": job_view(record),
        "id": record.id,
        "type": record.job.type,
        "state": record.state,
        "queue": record.job.queue,
    }
    if warnings:
        content["warnings"] = warnings
    if made.deduplicated:
        return x.ok({**content, "deduplicated": True})
    x.headers.append(("location", f"/ojs/v1/jobs/{record.id}"))
    x.headers += pressure_headers(made.pressure)
    if record.limit is not None and record.limit.key:
        standing = await x.engine.limit(record.limit.key)
        if not isinstance(standing, Refusal):
            x.headers += limit_headers(standing, x.desk.now())
    return x.ok(content, 201)


@JOBS.on(
    "POST",
    "/ojs/v1/jobs/batch",
    takes="BatchRequest",
    gives="BatchReply",
    success=(201,),
    statuses=(409, 422, 429),
)
async def enqueue_batch(x: Exchange) -> Response:
    """Enqueue many jobs, all of them or none."""
    made = await x.engine.push_many(_submissions(x))
    if isinstance(made, Refusal):
        return x.refuse(made)
    jobs = [job_view(one.record) for one in made if not isinstance(one, Refusal)]
    return x.ok({"jobs": jobs, "count": len(jobs)}, 201)


@JOBS.on(
    "POST",
    "/ojs/v1/jobs/bulk",
    takes="BatchRequest",
    success=(201, 207),
    statuses=(409, 422, 429),
)
async def enqueue_bulk(x: Exchange) -> Response:
    """Enqueue many jobs; with ``atomicity: partial`` each has its own fate."""
    fields = x.fields()
    atomicity = fields.choice("atomicity", ("partial", "atomic")) or "partial"
    if atomicity == "atomic":
        return await enqueue_batch(x)
    items: list[dict[str, Any]] = []
    wanted: list[tuple[int, Submission]] = []
    for index, raw in enumerate(_listed(x)):
        try:
            one = _submission(x, members(raw, f"jobs[{index}]"), len(bytes(raw)))
            x.desk.checked(one)
            wanted.append((index, one))
            items.append({})
        except Refused as error:
            items.append(_failed(index, error.refusal))
    fates = await x.engine.push_many([submission for _, submission in wanted], atomic=False)
    if isinstance(fates, Refusal):
        return x.refuse(fates)
    for (index, _), fate in zip(wanted, fates, strict=True):
        items[index] = _item(index, fate)
    good = sum(item["status"] != "failed" for item in items)
    content = {"total": len(items), "succeeded": good, "failed": len(items) - good, "items": items}
    if good == 0:
        return x.ok({**content, "error": items[0]["error"]}, 422)
    return x.ok(content, 201 if good == len(items) else 207)


@JOBS.on("GET", _ONE, role=Role.VIEW, gives="JobReply")
async def show(x: Exchange) -> Response:
    """One job as it is now."""
    return _answered(x, await x.engine.info(x.job_id(), tenant=x.tenant))


@JOBS.on("DELETE", _ONE, gives="JobReply", statuses=(409,))
async def cancel(x: Exchange) -> Response:
    """Cancel a job that is not over; one that runs is cancelled at once."""
    return await _cancelled(x, "")


@JOBS.on("POST", f"{_ONE}/cancel", takes="CancelRequest?", gives="JobReply", statuses=(409,))
async def cancel_with_reason(x: Exchange) -> Response:
    """Cancel a job that is not over, and say why."""
    return await _cancelled(x, x.fields_or_nothing().text("reason", max_chars=500) or "")


@JOBS.on("POST", f"{_ONE}/activate", takes="Anything?", gives="JobReply", statuses=(409,))
async def activate(x: Exchange) -> Response:
    """Let a pending job be fetched."""
    done = await x.engine.activate(x.job_id(), tenant=x.tenant)
    return _answered(x, done, previous_state="pending")


@JOBS.on("PATCH", _ONE, takes="PriorityRequest", gives="JobReply", statuses=(409,))
async def reprioritise(x: Exchange) -> Response:
    """Change the priority of a job that waits."""
    fields = x.fields()
    priority = fields.whole("priority", -100, 100)
    if priority is None:
        raise fields.bad("priority", "is required")
    return _answered(x, await x.engine.reprioritise(x.job_id(), priority, tenant=x.tenant))


# Helpers ------------------------------------------------------------------------------


async def _cancelled(x: Exchange, reason: str) -> Response:
    done = await x.engine.cancel(x.job_id(), reason=reason, tenant=x.tenant)
    if isinstance(done, Refusal):
        return x.refuse(done)
    return x.ok({"job": job_view(done, previous_state=came_from(done))})


def came_from(record: Record) -> str:
    """The state before the last transition."""
    return record.tail[-1].came_from if record.tail else ""


def _answered(x: Exchange, done: Record | Refusal, **more: Any) -> Response:
    if isinstance(done, Refusal):
        return x.refuse(done)
    return x.ok({"job": job_view(done, **more)})


def _submission(x: Exchange, raw: dict[str, Raw], size: int, path: str = "") -> Submission:
    limit = x.desk.limits.max_envelope_bytes
    if size > limit:
        raise Refused(too_large("job", size, limit))
    return x.engine.submission(raw, tenant=x.tenant, path=path)


def _submissions(x: Exchange) -> list[Submission]:
    """Every job of a batch; the first that is wrong is named by its index."""
    found = []
    for index, raw in enumerate(_listed(x)):
        path = f"jobs[{index}]"
        try:
            found.append(_submission(x, members(raw, path), len(bytes(raw)), path))
            x.desk.checked(found[-1])
        except Refused as error:
            details = {**error.refusal.details, "index": index}
            raise Refused(msgspec.structs.replace(error.refusal, details=details)) from error
    return found


def _listed(x: Exchange) -> list[Raw]:
    limits = x.desk.limits
    fields = x.fields()
    listed = fields.array("jobs")
    if listed is None:
        raise fields.bad("jobs", "is required and must be an array")
    jobs = _raws.decode(listed)
    if not jobs:
        raise fields.bad("jobs", "must hold at least one job")
    if len(jobs) > limits.max_batch_jobs:
        details = {"max_batch_size": limits.max_batch_jobs}
        message = f"jobs: {len(jobs)} jobs, {limits.max_batch_jobs} are allowed"
        raise Refused(Refusal("batch_too_large", message, details))
    return jobs


def _item(index: int, fate: Any) -> dict[str, Any]:
    if isinstance(fate, Refusal):
        return _failed(index, fate)
    status = "duplicate" if fate.deduplicated else "created"
    return {"index": index, "status": status, "job": job_view(fate.record)}


def _failed(index: int, refusal: Refusal) -> dict[str, Any]:
    return {"index": index, "status": "failed", **refusal.body()}


def _block_seconds(x: Exchange) -> float:
    """How long the client is willing to wait for room in the queue."""
    text = x.request.header("ojs-block-timeout")
    try:
        return min(max(float(text), 0.0), 60.0) if text else 0.0
    except ValueError:
        raise invalid("OJS-Block-Timeout", "must be a number of seconds") from None
