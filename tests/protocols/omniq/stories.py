"""Words that the stories about queues share: the instant T and a job that must be there."""

from __future__ import annotations

from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.wire import Paused, ReservedJob

__all__ = ["T", "leased", "name_of"]

T = 1_800_000_000_000


async def leased(client: OmniqClient, queue: str, at: int = 0) -> ReservedJob:
    """Reserve a job at instant ``at``; it must be there."""
    job = await client.reserve(queue, now_ms_override=at)
    assert isinstance(job, ReservedJob)
    return job


def name_of(result: ReservedJob | Paused | None) -> str | None:
    """The id of what reserve returned, for short comparisons."""
    return result.job_id if isinstance(result, ReservedJob) else None
