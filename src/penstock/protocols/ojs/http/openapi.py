"""The OpenAPI document, written from the routes that are served and the shapes that are meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from penstock.protocols.ojs.http.replies import JSON, OJS_JSON
from penstock.protocols.ojs.http.routing import Route, Routes
from penstock.protocols.ojs.http.shapes import QUERY, SHAPES

__all__ = ["openapi"]

_PARAM: Final = re.compile(r"\{(\w+)\*?\}")
_ALWAYS: Final = (404, 405, 500, 503, 504)
_WITH_BODY: Final = (400, 413)
_WITH_ROLE: Final = (400, 401, 403)
_REASONS: Final = {
    200: "Done",
    201: "Created",
    204: "Done, nothing to say",
    207: "Some did, some did not",
    400: "The request cannot be read",
    401: "No token, or one that is not known",
    403: "The token may not do this",
    404: "There is no such thing",
    405: "This path has other methods",
    408: "Not finished in time",
    409: "The state does not allow this",
    410: "No longer kept",
    413: "Too large",
    422: "Understood, and cannot be done",
    429: "Not now; see Retry-After",
    500: "A fault of the server",
    503: "The store is away",
    504: "The store did not answer in time",
}


def openapi(tables: Iterable[Routes], version: str) -> dict[str, Any]:
    """OpenAPI 3.1 for all of ``tables``."""
    paths: dict[str, dict[str, Any]] = {}
    tags = []
    for table in tables:
        tags.append({"name": table.tag})
        for route in table:
            path = _PARAM.sub(r"{\1}", route.path)
            paths.setdefault(path, {})[route.method.lower()] = _operation(route, table.tag)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Open Job Spec on NATS",
            "version": version,
            "description": "Jobs, schedules and workflows that outlive every process.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": tags,
        "paths": paths,
        "components": {
            "schemas": SHAPES,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, tag: str) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "tags": [tag],
        "responses": _responses(route),
    }
    if parameters := [*_in_path(route), *_in_query(route)]:
        operation["parameters"] = parameters
    if route.takes:
        name = route.takes.removesuffix("?")
        operation["requestBody"] = {
            "required": not route.takes.endswith("?"),
            "content": {kind: {"schema": _ref(name)} for kind in (JSON, OJS_JSON)},
        }
    if route.role is not None:
        operation["security"] = [{"bearer": []}, {}]
        operation["x-role"] = route.role.name.lower()
    return operation


def _operation_id(route: Route) -> str:
    words = re.findall(r"[A-Za-z0-9]+", route.path.removeprefix("/ojs/v1/"))
    root = [] if route.path.startswith("/ojs/v1/") else ["root"]
    return "_".join([route.method.lower(), *root, *words])


def _in_path(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAM.findall(route.path)
    ]


def _in_query(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "query", "required": False, "schema": QUERY.get(name, QUERY[""])}
        for name in route.query
    ]


def _responses(route: Route) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for status in route.success:
        answers[str(status)] = {"description": _REASONS[status], **_content(route, status)}
    refusals = {*_ALWAYS, *route.statuses}
    refusals |= set(_WITH_BODY) if route.takes else set()
    refusals |= set(_WITH_ROLE) if route.role is not None else set()
    refusals |= {400, 422} if route.query or "{" in route.path else {422}
    for status in sorted(refusals - set(route.success)):
        answers[str(status)] = {"description": _REASONS[status], "content": _json("Error")}
    return answers


def _content(route: Route, status: int) -> dict[str, Any]:
    if status == 204:
        return {}
    if route.media:
        return {"content": {route.media: {"schema": {"type": "string"}}}}
    return {"content": _json(route.gives or "Anything")}


def _json(name: str) -> dict[str, Any]:
    return {kind: {"schema": _ref(name)} for kind in (OJS_JSON, JSON)}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
