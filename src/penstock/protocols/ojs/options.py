"""Settings of the OJS room: limits, terms and defaults. Times are lengths, sizes are bytes."""

from __future__ import annotations

from datetime import timedelta

from msgspec import Struct

__all__ = ["Limits", "OjsOptions"]


class Limits(Struct, frozen=True, kw_only=True):
    """What is refused because of its size. Declared in the manifest."""

    max_envelope_bytes: int = 1 << 20
    max_meta_bytes: int = 64 << 10
    max_result_bytes: int = 1 << 20
    max_checkpoint_bytes: int = 1 << 20
    max_batch_jobs: int = 10_000
    max_batch_bytes: int = 8 << 20
    max_body_bytes: int = 16 << 20
    max_fetch: int = 1_000
    max_errors: int = 10
    max_tags: int = 100
    max_workflow_depth: int = 5
    max_workflow_jobs: int = 10_000


class OjsOptions(Struct, frozen=True, kw_only=True):
    """How jobs are treated where neither job nor queue says otherwise.

    ``default_timeout`` of zero: no limit. ``max_deaths``: so many attempts in a row that end
    without an answer (worker died, lease lapsed) park a job, whatever attempts remain.
    ``patience``: after that long, what somebody began and did not finish is finished or undone
    by whoever sees it. ``replicas`` of all that is made here; what exists stays as it is.
    ``services``: whether workers run promoter, reaper, cron and reconciler beside their jobs.
    ``events``: keep a stream of what happened to jobs, for polling, SSE and webhooks.
    """

    visibility_timeout: timedelta = timedelta(seconds=1800)
    default_timeout: timedelta = timedelta(0)
    heartbeat_interval: timedelta = timedelta(seconds=5)
    heartbeat_timeout: timedelta = timedelta(seconds=30)
    first_term: timedelta = timedelta(seconds=30)
    keep_completed: timedelta = timedelta(days=7)
    keep_discarded: timedelta = timedelta(days=30)
    keep_cancelled: timedelta = timedelta(days=7)
    keep_dead_letters: timedelta = timedelta(days=180)
    keep_results: timedelta = timedelta(days=7)
    max_retry_after: timedelta = timedelta(days=7)
    max_deaths: int = 10
    patience: timedelta = timedelta(seconds=30)
    services: bool = True
    replicas: int = 1
    events: bool = True
    keep_events: timedelta = timedelta(days=7)
    max_events: int = 1_000_000
    require_tenant: bool = False
    conformance: bool = False
    limits: Limits = Limits()
