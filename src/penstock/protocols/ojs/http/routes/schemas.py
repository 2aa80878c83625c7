"""Schemas of job types: the admin form (type and version in the path) and the URI form."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Raw

from penstock.protocols.ojs.fields import MISSING, Fields
from penstock.protocols.ojs.http.exchange import Exchange
from penstock.protocols.ojs.http.routing import Routes
from penstock.protocols.ojs.names import JOB_TYPE
from penstock.protocols.ojs.refusal import Refusal, Refused, invalid, not_found
from penstock.protocols.ojs.schemas import Registered
from penstock.web.auth import Role
from penstock.web.message import Response

__all__ = ["SCHEMAS"]

SCHEMAS: Final = Routes("schemas")
_BY_TYPE: Final = ("/ojs/v1/admin/schemas/{type}", "/ojs/v1/schemas/types/{type}")


@SCHEMAS.on(
    "PUT",
    "/ojs/v1/admin/schemas/{type}/{version}",
    role=Role.ADMIN,
    takes="SchemaRequest",
    gives="SchemaReply",
    success=(201,),
    statuses=(409,),
)
async def register(x: Exchange) -> Response:
    """Register a version of a type's schema; it never changes afterwards."""
    fields = x.fields()
    schema = fields.raw.get("schema", Raw(b"null"))
    return _made(x, await x.desk.schemas.register(_type(x), x.request.params["version"], schema))


@SCHEMAS.on("GET", "/ojs/v1/admin/schemas", role=Role.VIEW, gives="Anything")
async def list_all(x: Exchange) -> Response:
    """Every registered version."""
    await x.desk.schemas.fresh()
    items = [_flat(one) for one in x.desk.schemas.all()]
    return x.ok({"items": items, "pagination": {"total": len(items), "page": 1}})


@SCHEMAS.on("GET", *_BY_TYPE, role=Role.VIEW, gives="SchemaReply")
async def latest(x: Exchange) -> Response:
    """The newest version of a type's schema."""
    await x.desk.schemas.fresh()
    return _found(x, x.desk.schemas.latest(_type(x)), x.request.params["type"])


@SCHEMAS.on("GET", *(f"{path}/versions" for path in _BY_TYPE), role=Role.VIEW, gives="Anything")
async def versions(x: Exchange) -> Response:
    """The versions of a type's schema, oldest first."""
    await x.desk.schemas.fresh()
    found = x.desk.schemas.versions(_type(x))
    newest = found[-1] if found else None
    shown = [
        {
            "version": one.shown_version,
            "created_at": one.created_at,
            "is_latest": one is newest,
        }
        for one in found
    ]
    return x.ok({"type": x.request.params["type"], "versions": shown})


@SCHEMAS.on(
    "GET", *(f"{path}/{{version}}" for path in _BY_TYPE), role=Role.VIEW, gives="SchemaReply"
)
async def one_version(x: Exchange) -> Response:
    """One version of a type's schema."""
    await x.desk.schemas.fresh()
    job_type, version = _type(x), x.request.params["version"]
    return _found(x, x.desk.schemas.get(job_type, version), f"{job_type}/{version}")


@SCHEMAS.on("DELETE", "/ojs/v1/admin/schemas/{type}/{version}", role=Role.ADMIN)
async def remove(x: Exchange) -> Response:
    """Forget a version. Jobs that were accepted under it stay."""
    job_type, version = _type(x), x.request.params["version"]
    refusal = await x.desk.schemas.remove(job_type, version)
    if refusal is not None:
        return x.refuse(refusal)
    return x.ok({"deleted": True, "type": job_type, "version": version})


@SCHEMAS.on(
    "POST",
    "/ojs/v1/schemas",
    role=Role.ADMIN,
    takes="Anything",
    gives="Anything",
    success=(201,),
    statuses=(409,),
)
async def register_by_uri(x: Exchange) -> Response:
    """Register a schema under a URI."""
    fields = x.fields()
    job_type = fields.name("type", JOB_TYPE, "must be a job type") or fields.name(
        "job_type", JOB_TYPE, "must be a job type"
    )
    if job_type is None:
        raise fields.bad("type", "is required")
    version = _version(fields)
    uri = fields.text("uri", max_chars=2048) or f"urn:ojs:schema:{job_type}:{version}"
    schema = fields.raw.get("schema", Raw(b"null"))
    made = await x.desk.schemas.register(job_type, version, schema, uri)
    if isinstance(made, Refusal):
        return x.refuse(made)
    return x.ok({"schema": _with_uri(made)}, 201)


@SCHEMAS.on("GET", "/ojs/v1/schemas", role=Role.VIEW, gives="Anything")
async def list_by_uri(x: Exchange) -> Response:
    """Every registered schema with its URI."""
    await x.desk.schemas.fresh()
    shown = [_with_uri(one) for one in x.desk.schemas.all()]
    return x.ok({"schemas": shown, "pagination": {"total": len(shown), "has_more": False}})


@SCHEMAS.on("GET", "/ojs/v1/schemas/{uri*}", role=Role.VIEW, gives="Anything")
async def show_by_uri(x: Exchange) -> Response:
    """A schema by its URI, or the newest of a type by its name."""
    await x.desk.schemas.fresh()
    found = _by_uri(x)
    return x.ok({"schema": {**_with_uri(found), "schema": found.schema}})


@SCHEMAS.on("DELETE", "/ojs/v1/schemas/{uri*}", role=Role.ADMIN)
async def remove_by_uri(x: Exchange) -> Response:
    """Forget the schema with this URI."""
    await x.desk.schemas.fresh()
    found = _by_uri(x)
    refusal = await x.desk.schemas.remove(found.type, found.version)
    return x.refuse(refusal) if refusal is not None else x.ok({"deleted": True, "uri": found.uri})


def _by_uri(x: Exchange) -> Registered:
    name = x.request.params["uri"]
    found = x.desk.schemas.by_uri(name) or x.desk.schemas.latest(name)
    if found is None:
        raise Refused(not_found("schema", name))
    return found


def _type(x: Exchange) -> str:
    name = x.request.params["type"]
    if not JOB_TYPE.fullmatch(name):
        raise invalid("type", f"{name[:128]!r} is not a job type")
    return name


def _version(fields: Fields) -> str:
    value = fields.value("version")
    if value is MISSING or isinstance(value, bool) or not isinstance(value, (int, str)):
        raise fields.bad("version", "is required: a number or a name like 2.0.0")
    return str(value)


def _made(x: Exchange, made: Registered | Refusal) -> Response:
    return x.refuse(made) if isinstance(made, Refusal) else x.ok(_flat(made), 201)


def _found(x: Exchange, found: Registered | None, name: str) -> Response:
    return x.refuse(not_found("schema", name)) if found is None else x.ok(_flat(found))


def _flat(one: Registered) -> dict[str, Any]:
    return {
        "type": one.type,
        "version": one.shown_version,
        "schema": one.schema,
        "created_at": one.created_at,
    }


def _with_uri(one: Registered) -> dict[str, Any]:
    return {
        "uri": one.uri or f"urn:ojs:schema:{one.type}:{one.version}",
        "type": one.type,
        "version": one.shown_version,
        "created_at": one.created_at,
    }
