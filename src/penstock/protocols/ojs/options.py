"""Settings of the OJS room: limits, terms and defaults. Times are lengths, sizes are bytes."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from msgspec import Meta, Struct

__all__ = ["Limits", "OjsOptions"]


class Limits(Struct, frozen=True, kw_only=True):
    """What is refused because of its size. Declared in the manifest."""

    max_envelope_bytes: Annotated[int, Meta(ge=1, description="One job, as sent.")] = 1 << 20
    max_meta_bytes: Annotated[int, Meta(ge=1, description="The meta of one job.")] = 64 << 10
    max_result_bytes: Annotated[int, Meta(ge=1, description="A result.")] = 1 << 20
    max_checkpoint_bytes: Annotated[int, Meta(ge=1, description="A checkpoint.")] = 1 << 20
    max_batch_jobs: Annotated[int, Meta(ge=1, description="Jobs in one batch.")] = 10_000
    max_batch_bytes: Annotated[int, Meta(ge=1, description="A batch, as sent.")] = 8 << 20
    max_body_bytes: Annotated[int, Meta(ge=1, description="Any request, unpacked.")] = 16 << 20
    max_fetch: Annotated[int, Meta(ge=1, description="Jobs in one fetch.")] = 1_000
    max_errors: Annotated[int, Meta(ge=1, description="Errors kept per job.")] = 10
    max_tags: Annotated[int, Meta(ge=1, description="Tags of one job.")] = 100
    max_workflow_depth: Annotated[int, Meta(ge=1, description="Workflows within workflows.")] = 5
    max_workflow_jobs: Annotated[
        int, Meta(ge=1, description="Jobs of one workflow, callbacks included.")
    ] = 10_000


class OjsOptions(Struct, frozen=True, kw_only=True):
    """How Open Job Spec jobs are treated where neither job nor queue says otherwise."""

    server: Annotated[
        str,
        Meta(
            description="Address of a job server elsewhere, for workers that reach no NATS. "
            "Unset: straight over NATS."
        ),
    ] = ""
    server_token: Annotated[
        str | None,
        Meta(description="Bearer token for that server.", extra={"secret": True}),
    ] = None
    visibility_timeout: Annotated[
        timedelta, Meta(description="How long a worker may be silent about a job.")
    ] = timedelta(seconds=1800)
    default_timeout: Annotated[
        timedelta, Meta(description="How long a job may run. Zero: no limit.")
    ] = timedelta(0)
    heartbeat_interval: Annotated[
        timedelta, Meta(description="How often workers are told to send heartbeats.")
    ] = timedelta(seconds=5)
    heartbeat_timeout: Annotated[
        timedelta, Meta(description="After so much silence a worker that sent heartbeats is dead.")
    ] = timedelta(seconds=30)
    first_term: Annotated[
        timedelta, Meta(description="The first term of a job whose worker promises heartbeats.")
    ] = timedelta(seconds=30)
    keep_completed: Annotated[timedelta, Meta(description="How long completed jobs are kept.")] = (
        timedelta(days=7)
    )
    keep_discarded: Annotated[timedelta, Meta(description="How long discarded jobs are kept.")] = (
        timedelta(days=30)
    )
    keep_cancelled: Annotated[timedelta, Meta(description="How long cancelled jobs are kept.")] = (
        timedelta(days=7)
    )
    keep_dead_letters: Annotated[timedelta, Meta(description="How long dead letters are kept.")] = (
        timedelta(days=180)
    )
    keep_results: Annotated[
        timedelta, Meta(description="How long results are kept, where the job does not say.")
    ] = timedelta(days=7)
    max_retry_after: Annotated[
        timedelta, Meta(description="The longest delay that a worker may ask for.")
    ] = timedelta(days=7)
    max_deaths: Annotated[
        int,
        Meta(
            ge=1,
            description="So many attempts in a row that end without an answer park a job, "
            "whatever attempts remain.",
        ),
    ] = 10
    patience: Annotated[
        timedelta,
        Meta(
            description="After that long, what somebody began and did not finish is "
            "finished or undone."
        ),
    ] = timedelta(seconds=30)
    services: Annotated[
        bool,
        Meta(description="Workers run promoter, reaper, cron and reconciler beside their jobs."),
    ] = True
    replicas: Annotated[
        int, Meta(ge=1, description="Copies of all that is made here; what exists stays as it is.")
    ] = 1
    events: Annotated[
        bool,
        Meta(description="Keep a stream of what happened to jobs, for polling, SSE and webhooks."),
    ] = True
    keep_events: Annotated[timedelta, Meta(description="How long events are kept.")] = timedelta(
        days=7
    )
    max_events: Annotated[int, Meta(ge=1, description="How many events are kept.")] = 1_000_000
    webhooks_private: Annotated[
        bool, Meta(description="Allow webhooks to addresses of this machine or network.")
    ] = False
    require_tenant: Annotated[bool, Meta(description="Refuse requests that name no tenant.")] = (
        False
    )
    conformance: Annotated[
        bool, Meta(description="Allow what only conformance runs need; a reset among it.")
    ] = False
    limits: Limits = Limits()
