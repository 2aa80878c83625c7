"""Queues: look, pause, resume, configure, empty; and the limits that hold for their jobs."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.protocols.ojs.fields import Fields
from penstock.protocols.ojs.http.choosing import chosen_in_query, paged
from penstock.protocols.ojs.http.exchange import Exchange
from penstock.protocols.ojs.http.routing import Routes
from penstock.protocols.ojs.http.views import job_view, limit_view, queue_view
from penstock.protocols.ojs.instants import in_ms
from penstock.protocols.ojs.names import QUEUE_NAME
from penstock.protocols.ojs.queues import parse_queue_config, shown_config
from penstock.protocols.ojs.refusal import Refusal, invalid
from penstock.protocols.ojs.throttle import KEY, parse_rate_limit
from penstock.web.auth import Role
from penstock.web.message import Response

__all__ = ["QUEUES"]

QUEUES: Final = Routes("queues")
_ALL: Final = "/ojs/v1/queues"
_ONE: Final = "/ojs/v1/queues/{name}"
_LIMIT: Final = "/ojs/v1/rate-limits/{key}"


@QUEUES.on("GET", _ALL, role=Role.VIEW, gives="QueueList")
async def list_queues(x: Exchange) -> Response:
    """Every queue that has jobs or settings."""
    queues = [
        {
            "name": view.name,
            "status": "paused" if view.paused else "active",
            "created_at": view.settings.created_at if view.settings is not None else None,
            "depth": view.depth,
            **view.counts,
        }
        for view in await x.engine.queues()
    ]
    return x.ok({"queues": queues, "pagination": {"total": len(queues), "has_more": False}})


@QUEUES.on("POST", _ALL, role=Role.ADMIN, takes="Anything", gives="QueueReply", success=(201,))
async def create(x: Exchange) -> Response:
    """Say something about a queue before its first job."""
    fields = x.fields()
    name = fields.name("name", QUEUE_NAME, "must be a queue name")
    if name is None:
        raise fields.bad("name", "is required")
    return await _configured(x, name, fields.fields("config") or Fields({}), 201)


@QUEUES.on("GET", _ONE, f"{_ONE}/stats", role=Role.VIEW, gives="QueueReply")
async def show(x: Exchange) -> Response:
    """A queue with its exact counters."""
    return x.ok(queue_view(await x.engine.queue(x.queue()), x.desk.now()))


@QUEUES.on("GET", f"{_ONE}/jobs", role=Role.VIEW, gives="JobList", query=("limit", "cursor"))
async def jobs(x: Exchange) -> Response:
    """The jobs of a queue, newest in their state first."""
    chosen = chosen_in_query(x)
    query = msgspec.structs.replace(chosen.query, queue=x.queue())
    page = await x.engine.jobs(query)
    return x.ok({"jobs": [job_view(one) for one in page.jobs], "pagination": paged(query, page)})


@QUEUES.on("POST", f"{_ONE}/pause", takes="Anything?", gives="QueueReply")
async def pause(x: Exchange) -> Response:
    """Hand out nothing from a queue until it is resumed."""
    view = await x.engine.pause(x.queue())
    at = view.settings.paused_at if view.settings is not None else ""
    return x.ok({**queue_view(view, x.desk.now()), "paused_at": at})


@QUEUES.on("POST", f"{_ONE}/resume", takes="Anything?", gives="QueueReply")
async def resume(x: Exchange) -> Response:
    """Hand out jobs again."""
    view = await x.engine.resume(x.queue())
    at = view.settings.resumed_at if view.settings is not None else ""
    return x.ok({**queue_view(view, x.desk.now()), "resumed_at": at})


@QUEUES.on(
    "PUT",
    f"{_ONE}/config",
    _ONE,
    "/ojs/v1/admin/queues/{name}/config",
    role=Role.ADMIN,
    takes="Anything",
    gives="QueueReply",
)
async def configure(x: Exchange) -> Response:
    """Set what a queue says where its jobs do not; what is not named stays."""
    return await _configured(x, x.queue(), x.fields(), 200)


@QUEUES.on("PUT", "/ojs/v1/admin/queues/{name}/rate-limit", role=Role.ADMIN, takes="Anything")
async def limit_queue(x: Exchange) -> Response:
    """Limit how many jobs of a queue may start in a period."""
    x.fields()  # one JSON object, or it is refused here
    limit = Fields({"rate_limit": msgspec.Raw(x.request.body)})
    return await _configured(x, x.queue(), limit, 200)


@QUEUES.on(
    "DELETE",
    "/ojs/v1/admin/queues/{name}/jobs",
    role=Role.ADMIN,
    takes="Anything",
    gives="Anything",
)
async def purge(x: Exchange) -> Response:
    """Remove the queue's jobs in some states; what waits is cancelled first."""
    fields = x.fields()
    if fields.flag("confirm") is not True:
        raise invalid("confirm", "must be true: this removes jobs for good")
    states = fields.texts("states") or ("completed", "cancelled", "discarded")
    older = fields.moment("older_than", x.desk.now())
    count = await x.engine.purge_queue(
        x.queue(), states, older_than_ms=0 if older is None else in_ms(older[0])
    )
    return x.ok({"purged_count": count, "states": list(states)})


# Limits -------------------------------------------------------------------------------


@QUEUES.on("GET", "/ojs/v1/rate-limits", role=Role.VIEW)
async def limits(x: Exchange) -> Response:
    """Every limit key that jobs have named."""
    items = [limit_view(one) for one in await x.engine.limits()]
    return x.ok({"items": items, "pagination": {"total": len(items)}})


@QUEUES.on("GET", _LIMIT, role=Role.VIEW)
async def limit(x: Exchange) -> Response:
    """One limit key, and how much of it is used."""
    found = await x.engine.limit(_key(x))
    return x.refuse(found) if isinstance(found, Refusal) else x.ok(limit_view(found))


@QUEUES.on("PUT", _LIMIT, role=Role.ADMIN, takes="Anything")
async def override_limit(x: Exchange) -> Response:
    """Let other limits hold for a key, whatever its jobs say."""
    key, fields = _key(x), x.fields()
    until = fields.moment("expires_at", x.desk.now())
    raw = {**fields.raw, "key": msgspec.Raw(msgspec.json.encode(key))}
    policy = parse_rate_limit(Fields(raw))
    until_ms = 0 if until is None else in_ms(until[0])
    return x.ok(limit_view(await x.engine.override_limit(key, policy, until_ms)))


# Helpers ------------------------------------------------------------------------------


async def _configured(x: Exchange, name: str, fields: Fields, status: int) -> Response:
    settings = await x.engine.configure(name, parse_queue_config(fields.raw))
    shown: dict[str, Any] = queue_view(await x.engine.queue(name), x.desk.now())
    return x.ok({**shown, "config": shown_config(settings)}, status)


def _key(x: Exchange) -> str:
    key = x.request.params["key"]
    if not KEY.fullmatch(key):
        raise invalid("key", f"{key[:128]!r} is not a limit key")
    return key
