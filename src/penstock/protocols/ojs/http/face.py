"""The face itself: find the handler, let in who may come in, answer whatever happens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.errors import LinkError, RequestTimeout
from penstock.broker.mirror import MirrorBehind
from penstock.protocols.ojs.http.exchange import TENANT, Exchange, opened
from penstock.protocols.ojs.http.live import Conversation
from penstock.protocols.ojs.http.routing import Route, Routes
from penstock.protocols.ojs.refusal import Refusal, Refused, not_found
from penstock.web.message import Request, Response, Socket, Streaming
from penstock.web.router import Router, WrongMethod

if TYPE_CHECKING:
    from penstock.protocols.ojs.http.desk import Desk

__all__ = ["OjsFace"]

Serve = Callable[[Socket], Coroutine[Any, Any, None]]

SOCKET_PATH: Final = "/ojs/v1/ws"

_log = logging.getLogger("penstock.ojs.http")
_AWAY: Final = Refusal("backend_unavailable", "The store cannot be reached at the moment")
_SLOW: Final = Refusal("backend_timeout", "The store did not answer in time")
_FAULT: Final = Refusal("backend_error", "An unexpected fault; the server log has the cause")
_WHO: Final = Refusal("unauthenticated", "This needs a bearer token that is known here")


class OjsFace:
    """Answers at one desk, on the paths of all ``tables``."""

    def __init__(self, desk: Desk, tables: Iterable[Routes]) -> None:
        self._desk = desk
        self._tokens = desk.tokens
        self._router: Router[Route] = Router()
        for table in tables:
            for route in table:
                self._router.add(route.method, route.path, route)

    async def answer(self, request: Request) -> Response | Streaming:
        exchange = opened(request, self._desk)
        try:
            route = self._route(request)
            if route.role is not None:
                self._let_in(exchange, route)
            self._check_version(exchange)
            return await route.handler(exchange)
        except Refused as error:
            return exchange.refuse(error.refusal)
        except (RequestTimeout, MirrorBehind):
            return exchange.refuse(_SLOW)
        except LinkError as error:
            _log.warning("%s %s: %s", request.method, request.path, error)
            return exchange.refuse(_AWAY)
        except Exception:  # noqa: BLE001 - a fault of ours; its client gets an answer, we get a log
            _log.exception("%s %s failed (%s)", request.method, request.path, exchange.request_id)
            return exchange.refuse(_FAULT)

    def leave(self) -> None:
        """Answer what comes, and say at ``/ready`` that no more should."""
        self._desk.stopping = True

    def socket(self, request: Request) -> Serve | None:
        """Events as they come, at ``/ojs/v1/ws``, for who may look."""
        role = self._tokens.role_of(request.header("authorization"))
        if request.path != SOCKET_PATH or role is None:
            return None
        return lambda socket: Conversation(self._desk, socket).hold()

    def _route(self, request: Request) -> Route:
        found = self._router.find(request.method, request.path)
        if found is None:
            raise Refused(not_found("path", request.path))
        if isinstance(found, WrongMethod):
            allowed = ", ".join(found.allowed)
            message = f"{request.method[:20]} is not for {request.path[:200]}; allowed: {allowed}"
            raise Refused(Refusal("method_not_allowed", message, {"allow": allowed}))
        request.params = found.params
        return found.handler

    def _let_in(self, exchange: Exchange, route: Route) -> None:
        role = self._tokens.role_of(exchange.request.header("authorization"))
        if role is None:
            exchange.headers.append(("www-authenticate", "Bearer"))
            raise Refused(_WHO)
        if route.role is not None and role < route.role:
            needed = route.role.name.lower()
            message = f"This needs the role {needed}, the token has {role.name.lower()}"
            raise Refused(Refusal("permission_denied", message, {"role": needed}))
        exchange.role = role
        tenant = exchange.request.header("x-ojs-tenant")
        if tenant and not TENANT.fullmatch(tenant):
            message = "X-OJS-Tenant: letters, digits and ._:- only, at most 128"
            raise Refused(Refusal("invalid_request", message, {"field": "X-OJS-Tenant"}))
        if not tenant and self._desk.options.require_tenant and _is_for_tenants(route):
            message = "X-OJS-Tenant is required here"
            raise Refused(Refusal("invalid_request", message, {"field": "X-OJS-Tenant"}))
        exchange.tenant = tenant

    def _check_version(self, exchange: Exchange) -> None:
        asked = exchange.request.header("ojs-version")
        if asked and asked.partition(".")[0].strip() != "1":
            message = f"OJS-Version {asked[:20]!r} is not spoken here, only 1.x"
            raise Refused(Refusal("unsupported", message, {"supported": ["1.0"]}))


def _is_for_tenants(route: Route) -> bool:
    """Whether a path is for those whose jobs they are, rather than for operators."""
    return route.path.startswith(("/ojs/v1/jobs", "/ojs/v1/workers", "/ojs/v1/workflows"))
