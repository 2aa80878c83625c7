"""What can be set on the natq wire. The defaults are the names every SDK uses."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from msgspec import Struct

__all__ = ["NatqOptions"]


class NatqOptions(Struct, frozen=True, kw_only=True):
    """Names on the server, and what Penstock adds (off by default where others would notice).

    ``max_attempts`` limits all async tasks; a task's own ``retries=`` wins over it.
    ``rerun_duplicates``: run a job whose run id already has a record, as other SDKs do.
    ``on_lost_result``: what to do with the message when its final record cannot be
    written at all: ``ack`` (as the protocol says) or ``nak`` (run it again later).
    """

    tasks_bucket: str = "natq_tasks"
    results_bucket: str = "natq_results"
    stream: str = "natq_jobs"
    sync_prefix: str = "natq.req."
    async_prefix: str = "natq.job."
    heartbeat: timedelta = timedelta(seconds=10)
    compat: bool = False
    max_attempts: int | None = None
    dead_letters: bool = True
    dead_stream: str = "natq_dead"
    dead_prefix: str = "natq.dead."
    result_ttl: timedelta | None = None
    enforce_schemas: bool = False
    large_results: bool = False
    large_bucket: str = "natq_large_results"
    checkpoints_bucket: str = "penstock_checkpoints"
    rerun_duplicates: bool = False
    on_lost_result: Literal["ack", "nak"] = "ack"
    max_requests: int = 1024
    replicas: int = 1
    max_error_chars: int = 4096
