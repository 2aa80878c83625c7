"""Workflows: create, look, cancel."""

from __future__ import annotations

from typing import Any, Final

from penstock.protocols.ojs.flows import FlowView, StepView
from penstock.protocols.ojs.http.exchange import Exchange
from penstock.protocols.ojs.http.routing import Routes
from penstock.protocols.ojs.instants import instant_text, of_ms
from penstock.protocols.ojs.refusal import Refusal
from penstock.web.auth import Role
from penstock.web.message import Response

__all__ = ["WORKFLOWS"]

WORKFLOWS: Final = Routes("workflows")
_ALL: Final = "/ojs/v1/workflows"
_ONE: Final = "/ojs/v1/workflows/{id}"


@WORKFLOWS.on(
    "POST",
    _ALL,
    takes="WorkflowRequest",
    gives="WorkflowReply",
    success=(201,),
    statuses=(409, 422, 429),
)
async def create(x: Exchange) -> Response:
    """Start a chain, a group, a batch, or a graph of jobs."""
    made = await x.engine.workflows.create(x.engine.workflows.parse(x.body(), x.tenant))
    if isinstance(made, Refusal):
        return x.refuse(made)
    x.headers.append(("location", f"/ojs/v1/workflows/{made.row.id}"))
    return x.ok({"workflow": _view(made)}, 201)


@WORKFLOWS.on("GET", _ALL, role=Role.VIEW)
async def list_all(x: Exchange) -> Response:
    """Every workflow that is kept."""
    found = await x.engine.workflows.all()
    shown = [_view(one) for one in found if not x.tenant or one.row.tenant == x.tenant]
    return x.ok({"workflows": shown, "pagination": {"total": len(shown), "has_more": False}})


@WORKFLOWS.on("GET", _ONE, role=Role.VIEW, gives="WorkflowReply")
async def show(x: Exchange) -> Response:
    """How far a workflow is."""
    return _answered(x, await x.engine.workflows.get(x.workflow_id(), tenant=x.tenant))


@WORKFLOWS.on("GET", f"{_ONE}/progress", role=Role.VIEW)
async def progress(x: Exchange) -> Response:
    """How far a workflow is, from 0 to 1."""
    found = await x.engine.workflows.get(x.workflow_id(), tenant=x.tenant)
    if isinstance(found, Refusal):
        return x.refuse(found)
    return x.ok(
        {
            "workflow_id": found.row.id,
            "state": found.row.state,
            "progress": found.done / found.total if found.total else 1.0,
            "completed": found.done,
            "failed": found.failed,
            "total": found.total,
        }
    )


@WORKFLOWS.on("DELETE", _ONE, gives="WorkflowReply", statuses=(409,))
async def cancel(x: Exchange) -> Response:
    """Cancel what has not run; start nothing more."""
    flow_id = x.workflow_id()
    if x.tenant:
        seen = await x.engine.workflows.get(flow_id, tenant=x.tenant)
        if isinstance(seen, Refusal):
            return x.refuse(seen)
    done = await x.engine.workflows.cancel(flow_id)
    if isinstance(done, Refusal):
        return x.refuse(done)
    row = done.row
    return x.ok(
        {
            "workflow": {
                **_view(done),
                "cancelled_at": instant_text(of_ms(row.ended_ms)),
                "steps_cancelled": row.cancelled,
                "steps_already_completed": done.done,
            }
        }
    )


# Helpers ------------------------------------------------------------------------------


def _answered(x: Exchange, found: FlowView | Refusal) -> Response:
    return x.refuse(found) if isinstance(found, Refusal) else x.ok({"workflow": _view(found)})


def _view(view: FlowView) -> dict[str, Any]:
    row = view.row
    word = "steps" if row.kind in ("chain", "graph") else "jobs"
    created = instant_text(of_ms(row.created_ms))
    shown: dict[str, Any] = {
        "id": row.id,
        "name": row.name or row.id,
        "type": row.kind,
        "state": row.state,
        f"{word}_total": view.total,
        f"{word}_completed": view.done,
        word: [_step(step) for step in view.steps],
        "created_at": created,
        "metadata": {
            "created_at": created,
            "job_count": view.jobs,
            "completed_count": view.done,
            "failed_count": view.failed,
        },
    }
    if view.callbacks:
        shown["callbacks"] = {step.id: _step(step) for step in view.callbacks}
    if row.ended_ms:
        shown["completed_at"] = instant_text(of_ms(row.ended_ms))
    return shown


def _step(step: StepView) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "index": step.index,
        "id": step.id,
        "type": step.type,
        "state": step.state,
        "job_id": step.job_id or None,
    }
    if step.kind != "job":
        shown["kind"] = step.kind
    if step.depends_on:
        shown["depends_on"] = list(step.depends_on)
    return shown
