"""What a job leaves behind: checkpoints, progress, results."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from penstock.protocols.ojs.http.exchange import Exchange
from penstock.protocols.ojs.http.routing import Routes
from penstock.protocols.ojs.names import JOB_ID
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.refusal import Refusal, invalid, not_found
from penstock.protocols.ojs.requests import parse_holding
from penstock.web.auth import Role
from penstock.web.message import Response

__all__ = ["NOTES"]

NOTES: Final = Routes("checkpoints, progress, results")
_JOB: Final = "/ojs/v1/jobs/{id}"
_CHECKPOINTS: Final = (f"{_JOB}/checkpoint", "/ojs/v1/checkpoints/{id}")
_MAX_WAIT_S: Final = 300.0
_MAX_IDS: Final = 1_000


@NOTES.on(
    "PUT",
    *_CHECKPOINTS,
    takes="CheckpointRequest",
    gives="CheckpointReply",
    statuses=(409, 413),
)
async def save_checkpoint(x: Exchange) -> Response:
    """Keep a checkpoint in place of the last one."""
    fields = x.fields()
    state = fields.raw.get("state")
    if state is None:
        raise invalid("state", "is required")
    proof = parse_holding(fields)
    holding = proof if proof.fence or proof.attempt else None
    saved = await x.engine.save_checkpoint(await x.own_job(), state, holding)
    return x.refuse(saved) if isinstance(saved, Refusal) else _checkpoint(x, saved)


@NOTES.on(
    "POST",
    *_CHECKPOINTS,
    takes="CheckpointRequest",
    gives="CheckpointReply",
    statuses=(409, 413),
)
async def post_checkpoint(x: Exchange) -> Response:
    """The same as PUT."""
    return await save_checkpoint(x)


@NOTES.on("GET", *_CHECKPOINTS, role=Role.VIEW, gives="CheckpointReply")
async def get_checkpoint(x: Exchange) -> Response:
    """The newest checkpoint of a job."""
    found = await x.engine.info(x.job_id(), tenant=x.tenant)
    return x.refuse(found) if isinstance(found, Refusal) else _checkpoint(x, found)


@NOTES.on("GET", "/ojs/v1/checkpoints/{id}/resume", role=Role.VIEW)
async def resume(x: Exchange) -> Response:
    """Whether a job has a checkpoint, and which."""
    found = await x.engine.info(x.job_id(), tenant=x.tenant)
    if isinstance(found, Refusal):
        return x.refuse(found)
    kept = found.job.checkpoint
    shown = None if kept is UNSET else kept
    return x.ok({"has_checkpoint": shown is not None, "checkpoint": shown})


@NOTES.on("DELETE", *_CHECKPOINTS)
async def drop_checkpoint(x: Exchange) -> Response:
    """Forget the checkpoint, if there is one."""
    job_id = await x.own_job()
    done = await x.engine.drop_checkpoint(job_id)
    if isinstance(done, Refusal):
        return x.refuse(done)
    return x.ok({"deleted": True, "job_id": job_id})


@NOTES.on("PUT", f"{_JOB}/progress", takes="ProgressRequest", gives="ProgressReply")
async def put_progress(x: Exchange) -> Response:
    """Report how far a job is, from 0 to 1."""
    fields = x.fields()
    value = fields.number("progress")
    data = fields.object("data")
    if value is None and data is None and "message" not in fields:
        raise invalid("progress", "or data is required")
    noted = await x.engine.note_progress(
        await x.own_job(),
        value=value,
        message=fields.text("message", max_chars=1000) or "",
        data=data,
    )
    return x.refuse(noted) if isinstance(noted, Refusal) else _progress(x, noted)


@NOTES.on("GET", f"{_JOB}/progress", role=Role.VIEW, gives="ProgressReply")
async def get_progress(x: Exchange) -> Response:
    """How far a job is."""
    found = await x.engine.info(x.job_id(), tenant=x.tenant)
    return x.refuse(found) if isinstance(found, Refusal) else _progress(x, found)


@NOTES.on(
    "GET",
    f"{_JOB}/result",
    role=Role.VIEW,
    statuses=(408, 410),
    query=("wait", "timeout"),
)
async def result(x: Exchange) -> Response:
    """The result of a job, waiting for it if asked."""
    wait = _seconds(x) if x.request.query("wait") == "true" else 0.0
    found = await x.desk.endings.of(x.job_id(), wait, tenant=x.tenant)
    return x.refuse(found) if isinstance(found, Refusal) else _result(x, found)


@NOTES.on("POST", "/ojs/v1/jobs/results", role=Role.VIEW, takes="Anything")
async def results(x: Exchange) -> Response:
    """The results of many jobs at once."""
    fields = x.fields()
    ids = fields.texts("ids", max_items=_MAX_IDS)
    if ids is None:
        raise fields.bad("ids", "is required")
    found = await x.engine.info_many([one for one in ids if JOB_ID.fullmatch(one)])
    shown = {
        job_id: {"state": one.state, "result": None if one.job.result is UNSET else one.job.result}
        for job_id, one in found.items()
        if not x.tenant or one.tenant == x.tenant
    }
    return x.ok({"results": shown})


# Helpers ------------------------------------------------------------------------------


def _checkpoint(x: Exchange, record: Record) -> Response:
    kept = record.job.checkpoint
    if kept is UNSET or record.checkpoint_seq == 0:
        return x.refuse(not_found("checkpoint", record.id))
    shown = {"job_id": record.id, **msgspec.json.decode(kept, type=dict[str, Raw])}
    return x.ok({**shown, "checkpoint": shown})


def _progress(x: Exchange, record: Record) -> Response:
    noted = record.progress
    value = None if noted is None else noted.value
    data: Any = None if noted is None or noted.data is UNSET else noted.data
    return x.ok(
        {
            "job_id": record.id,
            "state": record.state,
            "progress": value,
            "message": noted.message if noted is not None else "",
            "data": data,
            "updated_at": noted.updated_at if noted is not None else None,
        },
        x_ojs_progress="" if value is None else str(value),
        cache_control="no-cache",
    )


def _result(x: Exchange, record: Record) -> Response:
    if not record.is_terminal:
        message = f"Job {record.id} is {record.state}, not finished"
        return x.refuse(Refusal("not_finished", message, {"current_state": record.state}))
    job = record.job
    if job.result is UNSET and job.result_stored_at:
        message = f"The result of job {record.id} was kept until {job.result_expires_at}"
        return x.refuse(Refusal("result_pruned", message, {"job_id": record.id}))
    return x.ok(
        {
            "job_id": record.id,
            "state": record.state,
            "result": None if job.result is UNSET else job.result,
            "result_stored_at": job.result_stored_at or None,
            "result_expires_at": job.result_expires_at or None,
        }
    )


def _seconds(x: Exchange) -> float:
    text = x.request.query("timeout")
    try:
        seconds = float(text) if text else 30.0
    except ValueError:
        raise invalid("timeout", "must be a number of seconds") from None
    if not 0 <= seconds <= _MAX_WAIT_S:
        raise invalid("timeout", f"must be from 0 to {_MAX_WAIT_S:g}")
    return seconds
