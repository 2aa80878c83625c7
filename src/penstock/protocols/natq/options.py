"""What can be set on the natq wire. The defaults are the names every SDK uses."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Literal

from msgspec import Meta, Struct

from penstock.core.errors import ConfigError

__all__ = ["NatqOptions"]

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_PREFIX = re.compile(r"(?:[A-Za-z0-9_=/-]+\.)+")
_SHORTEST_TTL = timedelta(seconds=1)  # what a server can count


class NatqOptions(Struct, frozen=True, kw_only=True):
    """Names on the server, and what Penstock adds (off by default where others would notice)."""

    tasks_bucket: Annotated[str, Meta(description="Where tasks are announced.")] = "natq_tasks"
    results_bucket: Annotated[str, Meta(description="Where the records of jobs are kept.")] = (
        "natq_results"
    )
    stream: Annotated[str, Meta(description="The work queue of all jobs.")] = "natq_jobs"
    sync_prefix: Annotated[str, Meta(description="Requests go to this and the task id.")] = (
        "natq.req."
    )
    async_prefix: Annotated[str, Meta(description="Jobs go to this and the task id.")] = "natq.job."
    heartbeat: Annotated[
        timedelta,
        Meta(description="Between two signs of life of a job; less where the ack wait is short."),
    ] = timedelta(seconds=10)
    compat: Annotated[
        bool, Meta(description="Any truthy `dropResultOnSuccess` drops a result, not only `true`.")
    ] = False
    max_attempts: Annotated[
        int | None,
        Meta(description="Limit for all async tasks; a task's own `retries=` wins over it."),
    ] = None
    dead_letters: Annotated[
        bool, Meta(description="Keep a copy of a job whose attempts have run out.")
    ] = True
    dead_stream: Annotated[str, Meta(description="Where those copies are.")] = "natq_dead"
    dead_prefix: Annotated[str, Meta(description="Their subjects: this and the task id.")] = (
        "natq.dead."
    )
    result_ttl: Annotated[
        timedelta | None, Meta(description="How long final records are kept. Unset: for ever.")
    ] = None
    enforce_schemas: Annotated[
        bool,
        Meta(description="Hold inputs and results against the announced schemas, on both sides."),
    ] = False
    large_results: Annotated[
        bool,
        Meta(description="Keep a result larger than a message may be in an object store."),
    ] = False
    large_bucket: Annotated[str, Meta(description="The object store for those.")] = (
        "natq_large_results"
    )
    checkpoints_bucket: Annotated[str, Meta(description="Where checkpoints are kept.")] = (
        "penstock_checkpoints"
    )
    rerun_duplicates: Annotated[
        bool,
        Meta(description="Run a job whose run id already has a record, as other SDKs do."),
    ] = False
    on_lost_result: Annotated[
        Literal["ack", "nak"],
        Meta(
            description="When a final record cannot be written at all: `ack` the job, as the "
            "protocol says, or `nak` it, to run it again later."
        ),
    ] = "ack"
    max_requests: Annotated[
        int, Meta(description="Requests answered at once, per process; more are told to wait.")
    ] = 1024
    replicas: Annotated[
        int, Meta(description="Replicas of streams and buckets that are made here.")
    ] = 1
    max_error_chars: Annotated[int, Meta(description="Longer error texts are cut.")] = 4096

    def __post_init__(self) -> None:
        for name in ("tasks_bucket", "results_bucket", "stream", "dead_stream", "large_bucket",
                     "checkpoints_bucket"):  # fmt: skip
            _check(name, getattr(self, name), _NAME, "letters, digits, _ and -")
        for name in ("sync_prefix", "async_prefix", "dead_prefix"):
            _check(name, getattr(self, name), _PREFIX, "words with a dot after each, as in natq.x.")
        for name in ("max_attempts", "max_requests", "replicas", "max_error_chars"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise _refused(name, value, "give 1 or more")
        if self.heartbeat <= timedelta(0):
            raise _refused("heartbeat", self.heartbeat, "give a time such as 10s")
        if self.result_ttl is not None and self.result_ttl < _SHORTEST_TTL:
            raise _refused("result_ttl", self.result_ttl, "give 1s or more, or leave it out")
        self._keep_out_of_the_job_stream("sync_prefix", "its stream would answer the requests")
        self._keep_out_of_the_job_stream("dead_prefix", "dead letters would be jobs again")

    def _keep_out_of_the_job_stream(self, name: str, why: str) -> None:
        prefix: str = getattr(self, name)
        if prefix.startswith(self.async_prefix):
            raise _refused(name, prefix, f"keep it out of async_prefix: {why}")


def _check(name: str, value: str, pattern: re.Pattern[str], allowed: str) -> None:
    if not pattern.fullmatch(value):
        raise _refused(name, value, f"use {allowed}")


def _refused(name: str, value: object, remedy: str) -> ConfigError:
    shown = repr(value) if isinstance(value, str) else str(value)
    return ConfigError(f"natq.{name} is {shown}", remedy=remedy, code="natq.options")
