"""What can be set for a worker on OmniQ. The defaults suit one that shares queues with others."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from msgspec import Meta, Struct

from penstock.protocols.omniq.wire import Compat

__all__ = ["OmniqOptions"]


class OmniqOptions(Struct, frozen=True, kw_only=True):
    """How queues are served. Other SDKs notice nothing of any of it, but for `compat`."""

    compat: Annotated[
        Compat,
        Meta(description="`v4` also keeps the statistics and indexes that SDK 4.x reads."),
    ] = "v1"
    cluster: Annotated[bool, Meta(description="The address names a node of a Redis Cluster.")] = (
        False
    )
    queues: Annotated[
        tuple[str, ...],
        Meta(description="Serve only these queues. Empty: those of all tasks."),
    ] = ()
    poll: Annotated[
        timedelta,
        Meta(
            description="How often an idle queue is looked at where Redis cannot tell of changes."
        ),
    ] = timedelta(milliseconds=50)
    upkeep: Annotated[
        timedelta,
        Meta(description="How often due jobs are promoted and lapsed leases reaped, at least."),
    ] = timedelta(seconds=1)
    promote_batch: Annotated[int, Meta(ge=1, description="Jobs promoted at once.")] = 1000
    reap_batch: Annotated[int, Meta(ge=1, description="Leases reaped at once.")] = 1000
    heartbeat: Annotated[
        timedelta,
        Meta(description="The longest gap between heartbeats; a third of a short lease is less."),
    ] = timedelta(seconds=10)
    result_ttl: Annotated[
        timedelta | None,
        Meta(description="Keep what handlers return for so long. Unset: not at all."),
    ] = None
