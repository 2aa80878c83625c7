"""Crons: register, look, switch on and off, forget."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw

from penstock.protocols.ojs.crons import CronRow, parse_cron
from penstock.protocols.ojs.http.exchange import Exchange
from penstock.protocols.ojs.http.routing import Routes
from penstock.protocols.ojs.instants import instant_text, of_ms
from penstock.protocols.ojs.refusal import Refusal, invalid
from penstock.web.auth import Role
from penstock.web.message import Response

__all__ = ["CRONS"]

CRONS: Final = Routes("cron")
_ALL: Final = "/ojs/v1/cron"
_ONE: Final = "/ojs/v1/cron/{name}"


@CRONS.on("POST", _ALL, takes="CronRequest", gives="CronReply", success=(201, 200))
async def register(x: Exchange) -> Response:
    """Register a cron, or change the one of that name."""
    row, new = await x.engine.crons.register(parse_cron(x.body(), x.engine.shared))
    return _one(x, row, 201 if new else 200)


@CRONS.on("GET", _ALL, role=Role.VIEW, gives="CronList", query=("enabled",))
async def list_crons(x: Exchange) -> Response:
    """Every cron."""
    wanted = x.request.query("enabled")
    if wanted not in ("", "true", "false"):
        raise invalid("enabled", "must be true or false")
    rows = await x.engine.crons.all()
    shown = [_view(row) for row in rows if not wanted or row.enabled is (wanted == "true")]
    return x.ok(
        {
            "crons": shown,
            "cron_jobs": shown,
            "count": len(shown),
            "pagination": {"total": len(shown), "has_more": False},
        }
    )


@CRONS.on("GET", _ONE, role=Role.VIEW, gives="CronReply")
async def show(x: Exchange) -> Response:
    """One cron."""
    row = await x.engine.crons.get(x.cron())
    return x.refuse(row) if isinstance(row, Refusal) else _one(x, row)


@CRONS.on("PATCH", _ONE, takes="EnabledRequest", gives="CronReply")
async def switch(x: Exchange) -> Response:
    """Switch a cron on or off; what was missed meanwhile stays missed."""
    name, fields = x.cron(), x.fields()
    enabled = fields.flag("enabled")
    if enabled is None:
        raise fields.bad("enabled", "is required")
    row = await x.engine.crons.enable(name, enabled)
    return x.refuse(row) if isinstance(row, Refusal) else _one(x, row)


@CRONS.on("DELETE", _ONE, gives="CronReply")
async def remove(x: Exchange) -> Response:
    """Forget a cron; the jobs it has created stay."""
    row = await x.engine.crons.remove(x.cron())
    if isinstance(row, Refusal):
        return x.refuse(row)
    return x.ok({"cron": _view(row), "deleted": True, "name": row.name})


# Helpers ------------------------------------------------------------------------------


def _one(x: Exchange, row: CronRow, status: int = 200) -> Response:
    shown = _view(row)
    return x.ok({"cron": shown, "cron_job": shown}, status)


def _view(row: CronRow) -> dict[str, Any]:
    """A cron under both of the names that its members have."""
    template = msgspec.json.decode(row.template, type=dict[str, Raw])
    upcoming = row.next_at
    return {
        "name": row.name,
        "expression": row.expression,
        "cron": row.expression,
        "timezone": row.timezone,
        "overlap_policy": row.overlap_policy,
        "misfire_policy": row.misfire,
        "enabled": row.enabled,
        "status": "active" if row.enabled else "disabled",
        "description": row.description,
        "job_template": row.template,
        **{name: template[name] for name in ("type", "args", "options") if name in template},
        "next_run_at": None if upcoming is None else instant_text(upcoming),
        "last_run_at": instant_text(of_ms(row.last_run_ms)) if row.last_run_ms else None,
        "run_count": row.run_count,
        "created_at": instant_text(of_ms(row.created_ms)),
    }
