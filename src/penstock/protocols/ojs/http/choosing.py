"""Which jobs a request means: filters and pages, in the query string or in a body."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from penstock.protocols.ojs.dead import BulkDone
from penstock.protocols.ojs.fields import Fields
from penstock.protocols.ojs.http.exchange import Exchange
from penstock.protocols.ojs.instants import in_ms, instant
from penstock.protocols.ojs.names import JOB_TYPE, QUEUE_NAME, STATES
from penstock.protocols.ojs.refusal import invalid
from penstock.protocols.ojs.retry import DEFAULT_RETRY, parse_retry
from penstock.protocols.ojs.views import JobPage, JobQuery

__all__ = [
    "FILTER",
    "PAGE",
    "Chosen",
    "bulk_view",
    "chosen_in_body",
    "chosen_in_query",
    "override_of",
    "paged",
]

FILTER: Final = ("queue", "type", "error_type", "since", "until")
PAGE: Final = ("limit", "offset", "cursor")


class Chosen(Struct, frozen=True):
    query: JobQuery
    error_type: str = ""


def chosen_in_query(x: Exchange, most: int = 200) -> Chosen:
    """A page of jobs, as the query string says."""
    given = {name: x.request.query(name) for name in (*FILTER, "state")}
    states = tuple(part for part in given["state"].split(",") if part)
    return _chosen(
        x,
        given,
        states,
        cursor=x.request.query("cursor")[:256],
        limit=x.number("limit", min(50, most), 1, most),
        offset=x.number("offset", 0, 0, 10**9),
    )


def chosen_in_body(x: Exchange) -> Chosen:
    """What a bulk action is to change, which must be confirmed."""
    fields = x.fields()
    if fields.flag("confirm") is not True:
        raise invalid("confirm", "must be true: this changes every job that fits")
    inner = fields.fields("filter")
    if inner is None:
        return Chosen(JobQuery(tenant=x.tenant))
    given = {name: inner.text(name, max_chars=256) or "" for name in FILTER}
    states: tuple[str, ...] = ()
    if isinstance(inner.value("state"), str):
        states = (inner.text("state") or "",)
    elif "state" in inner:
        states = inner.texts("state") or ()
    return _chosen(x, given, states)


def override_of(fields: Fields | None) -> dict[str, Any] | None:
    """What another life of a job shall have of its own. Raises `Refused` naming the member."""
    if fields is None:
        return None
    found: dict[str, Any] = {}
    if (queue := fields.name("queue", QUEUE_NAME, "must be a queue name")) is not None:
        found["queue"] = queue
    if (meta := fields.object("meta")) is not None:
        found["meta"] = meta
    if (args := fields.array("args")) is not None:
        found["args"] = args
    if (retry := fields.fields("retry")) is not None:
        found["retry"] = parse_retry(retry, DEFAULT_RETRY)
    return found


def paged(query: JobQuery, page: JobPage) -> dict[str, Any]:
    """Where a page stands in its list."""
    shown: dict[str, Any] = {
        "total": page.total,
        "limit": query.limit,
        "offset": query.offset,
        "has_more": bool(page.cursor),
    }
    if page.cursor:
        shown["next_cursor"] = page.cursor
    return shown


def bulk_view(done: BulkDone) -> dict[str, Any]:
    errors = [
        {"job_id": job_id, "code": refusal.code, "message": refusal.message}
        for job_id, refusal in done.refused.items()
    ]
    return {
        "matched": done.matched,
        "succeeded": len(done.done),
        "failed": len(errors),
        "errors": errors,
    }


def _chosen(x: Exchange, given: dict[str, str], states: tuple[str, ...], **page: Any) -> Chosen:
    if unknown := [state for state in states if state not in STATES]:
        raise invalid("state", f"{unknown[0][:64]!r} is not one of {', '.join(STATES)}")
    queue, job_type = given["queue"], given["type"]
    if queue and not QUEUE_NAME.fullmatch(queue):
        raise invalid("queue", f"{queue[:128]!r} is not a queue name")
    if job_type and not JOB_TYPE.fullmatch(job_type.removesuffix("*").removesuffix(".") or "a"):
        raise invalid("type", f"{job_type[:128]!r} is not a job type or the beginning of one")
    query = JobQuery(
        states=states,
        queue=queue or None,
        job_type=job_type,
        tenant=x.tenant,
        since_ms=_moment("since", given["since"], x.desk.now()),
        until_ms=_moment("until", given["until"], x.desk.now()),
    )
    return Chosen(msgspec.structs.replace(query, **page), given["error_type"])


def _moment(name: str, text: str, now: datetime) -> int:
    if not text:
        return 0
    try:
        return in_ms(instant(text, now))
    except ValueError as error:
        raise invalid(name, str(error)) from None
