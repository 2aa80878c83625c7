"""Webhooks: subscribe to events, see what was delivered."""

from __future__ import annotations

from typing import Final

from penstock.protocols.ojs.hooks import fields_given, parse_subscription
from penstock.protocols.ojs.http.exchange import Exchange
from penstock.protocols.ojs.http.routing import Routes
from penstock.protocols.ojs.instants import in_ms
from penstock.protocols.ojs.refusal import Refusal
from penstock.web.auth import Role
from penstock.web.message import Response

__all__ = ["HOOKS"]

HOOKS: Final = Routes("webhooks")
_ALL: Final = "/ojs/v1/webhooks/subscriptions"
_ONE: Final = "/ojs/v1/webhooks/subscriptions/{id}"
_DELIVERIES: Final = "/ojs/v1/webhooks/deliveries"


@HOOKS.on("POST", _ALL, role=Role.ADMIN, takes="HookRequest", gives="HookReply", success=(201,))
async def subscribe(x: Exchange) -> Response:
    """Have events sent to an address. The secret is shown here and never again."""
    private = x.desk.options.webhooks_private
    asked = parse_subscription(x.body(), in_ms(x.desk.now()), private=private)
    made = await x.engine.hooks.subscribe(asked)
    return x.ok({"subscription": made.view(with_secret=True)}, 201)


@HOOKS.on("GET", _ALL, role=Role.ADMIN)
async def list_all(x: Exchange) -> Response:
    """Every subscription."""
    found = [one.view() for one in await x.engine.hooks.all()]
    return x.ok({"subscriptions": found, "pagination": {"total": len(found)}})


@HOOKS.on("GET", _ONE, role=Role.ADMIN, gives="HookReply")
async def show(x: Exchange) -> Response:
    """One subscription."""
    found = await x.engine.hooks.get(x.request.params["id"])
    return x.refuse(found) if isinstance(found, Refusal) else x.ok({"subscription": found.view()})


@HOOKS.on("PATCH", _ONE, role=Role.ADMIN, takes="HookRequest", gives="HookReply", statuses=(409,))
async def amend(x: Exchange) -> Response:
    """Change what is named, keep the rest."""
    given = fields_given(x.fields(), private=x.desk.options.webhooks_private)
    found = await x.engine.hooks.amend(x.request.params["id"], **given)
    return x.refuse(found) if isinstance(found, Refusal) else x.ok({"subscription": found.view()})


@HOOKS.on("DELETE", _ONE, role=Role.ADMIN)
async def remove(x: Exchange) -> Response:
    """End a subscription; what is under way is given up."""
    name = x.request.params["id"]
    refusal = await x.engine.hooks.remove(name)
    return x.refuse(refusal) if refusal is not None else x.ok({"deleted": True, "id": name})


@HOOKS.on("POST", f"{_ONE}/rotate-secret", role=Role.ADMIN, takes="Anything?", gives="HookReply")
async def rotate(x: Exchange) -> Response:
    """Make a new secret; for a day the old one signs too."""
    found = await x.engine.hooks.rotate(x.request.params["id"])
    if isinstance(found, Refusal):
        return x.refuse(found)
    return x.ok({"subscription": found.view(with_secret=True)})


@HOOKS.on("POST", f"{_ONE}/test", role=Role.ADMIN, takes="Anything?", statuses=(422,))
async def test(x: Exchange) -> Response:
    """Send an event that says only that the way is open, and tell what came back."""
    found = await x.engine.hooks.get(x.request.params["id"])
    if isinstance(found, Refusal):
        return x.refuse(found)
    services = x.engine.services
    if services is None or services.hook_sender is None:
        message = "This instance runs no services; ask one that does"
        return x.refuse(Refusal("unsupported", message))
    answer = await services.hook_sender.probe(found)
    return x.ok(
        {
            "success": answer.accepted,
            "status_code": answer.status or None,
            "response_time_ms": round(answer.seconds * 1000, 1),
            "response_body": answer.text,
        }
    )


@HOOKS.on("GET", _DELIVERIES, role=Role.ADMIN, query=("limit",))
async def deliveries(x: Exchange) -> Response:
    """Deliveries, newest first."""
    limit = x.number("limit", 50, 1, 200)
    await x.engine.hooks.deliveries.barrier()
    rows = sorted(
        (row for _, row in x.engine.hooks.deliveries.rows()), key=lambda row: -row.created_ms
    )
    shown = [row.view() for row in rows[:limit]]
    return x.ok({"deliveries": shown, "pagination": {"total": len(rows), "limit": limit}})


@HOOKS.on("GET", f"{_DELIVERIES}/{{id}}", role=Role.ADMIN)
async def delivery(x: Exchange) -> Response:
    """One delivery."""
    found = await x.engine.hooks.delivery(x.request.params["id"])
    return x.refuse(found) if isinstance(found, Refusal) else x.ok({"delivery": found.view()})


@HOOKS.on(
    "POST", f"{_DELIVERIES}/{{id}}/retry", role=Role.ADMIN, takes="Anything?", statuses=(409,)
)
async def again(x: Exchange) -> Response:
    """Try a delivery again at once."""
    found = await x.engine.hooks.again(x.request.params["id"])
    return x.refuse(found) if isinstance(found, Refusal) else x.ok({"delivery": found.view()})
