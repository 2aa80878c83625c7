"""Dead letters: jobs that failed for good and are kept to be looked at."""

from __future__ import annotations

from typing import Final

from penstock.protocols.ojs.http.choosing import (
    FILTER,
    PAGE,
    bulk_view,
    chosen_in_body,
    chosen_in_query,
    override_of,
    paged,
)
from penstock.protocols.ojs.http.exchange import Exchange
from penstock.protocols.ojs.http.routing import Routes
from penstock.protocols.ojs.http.views import job_view
from penstock.protocols.ojs.instants import duration_text, instant_text, of_ms
from penstock.protocols.ojs.refusal import Refusal
from penstock.web.auth import Role
from penstock.web.message import Response

__all__ = ["DEAD"]

DEAD: Final = Routes("dead letters")
_ALL: Final = "/ojs/v1/dead-letter"
_ONE: Final = "/ojs/v1/dead-letter/{id}"


@DEAD.on("GET", _ALL, role=Role.VIEW, gives="JobList", query=(*FILTER, *PAGE))
async def list_dead(x: Exchange) -> Response:
    """Dead letters, newest first."""
    chosen = chosen_in_query(x, 100)
    page = await x.engine.dead_letters.page(chosen.query, error_type=chosen.error_type)
    jobs = [job_view(record) for record in page.jobs]
    return x.ok({"jobs": jobs, "pagination": paged(chosen.query, page)})


@DEAD.on("GET", f"{_ALL}/stats", role=Role.VIEW)
async def stats(x: Exchange) -> Response:
    """How many dead letters there are, by queue and by error."""
    stats = await x.engine.dead_letters.stats()
    keep = x.desk.options.keep_dead_letters
    return x.ok(
        {
            "total": stats.total,
            "by_queue": stats.by_queue,
            "by_error_type": stats.by_error_type,
            "oldest_at": instant_text(of_ms(stats.oldest_ms)) if stats.total else None,
            "newest_at": instant_text(of_ms(stats.newest_ms)) if stats.total else None,
            "retention": {"max_age": duration_text(keep)},
        }
    )


@DEAD.on("GET", _ONE, role=Role.VIEW, gives="JobReply")
async def show(x: Exchange) -> Response:
    """One dead letter."""
    found = await x.engine.dead_letters.get(await x.own_job())
    return x.refuse(found) if isinstance(found, Refusal) else x.ok({"job": job_view(found)})


@DEAD.on("POST", f"{_ONE}/retry", takes="Anything?", gives="JobReply", statuses=(409,))
async def retry(x: Exchange) -> Response:
    """Give a dead letter another life, changed if asked."""
    override = override_of(x.fields_or_nothing().fields("override"))
    done = await x.engine.dead_letters.retry(await x.own_job(), override)
    return x.refuse(done) if isinstance(done, Refusal) else x.ok({"job": job_view(done)})


@DEAD.on("POST", f"{_ALL}/retry", takes="Anything")
async def retry_many(x: Exchange) -> Response:
    """Give every dead letter that fits another life."""
    chosen = chosen_in_body(x)
    done = await x.engine.dead_letters.retry_all(chosen.query, error_type=chosen.error_type)
    return x.ok({"action": "retry", **bulk_view(done)})


@DEAD.on("DELETE", _ONE, statuses=(409,))
async def drop(x: Exchange) -> Response:
    """Delete a dead letter for good."""
    job_id = await x.own_job()
    done = await x.engine.dead_letters.delete(job_id)
    if isinstance(done, Refusal):
        return x.refuse(done)
    return x.ok({"deleted": True, "job_id": job_id})


@DEAD.on("DELETE", _ALL, role=Role.ADMIN, takes="Anything")
async def drop_many(x: Exchange) -> Response:
    """Delete every dead letter that fits."""
    chosen = chosen_in_body(x)
    done = await x.engine.dead_letters.delete_all(chosen.query, error_type=chosen.error_type)
    return x.ok({"purged_count": len(done.done), **bulk_view(done)})
