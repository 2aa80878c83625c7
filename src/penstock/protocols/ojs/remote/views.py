"""What servers answer, as far as clients need it; members that we do not know are ignored."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Raw, Struct

__all__ = ["NONE", "BeatAnswer", "RemoteJob", "SettledAnswer"]


NONE: Final = Raw(b"null")


class RemoteJob(Struct, frozen=True, kw_only=True):
    """A job as a server shows it. ``fence``, ``iteration`` and ``returned`` come from ours only."""

    id: str
    type: str
    queue: str = "default"
    state: str = ""
    args: Raw = Raw(b"[]")
    meta: dict[str, Any] = {}
    priority: int = 0
    attempt: int = 0
    max_attempts: int = 0
    created_at: str = ""
    enqueued_at: str = ""
    scheduled_at: str = ""
    started_at: str = ""
    completed_at: str = ""
    next_attempt_at: str = ""
    timeout_ms: int = 0
    visibility_timeout_ms: int = 0
    result: Raw = NONE
    error: dict[str, Any] | None = None
    errors: tuple[dict[str, Any], ...] = ()
    checkpoint: dict[str, Raw] | None = None
    parent_results: Raw = NONE
    fence: str = ""
    iteration: int = 0
    returned: int = 0

    @property
    def is_over(self) -> bool:
        return self.state in ("completed", "cancelled", "discarded")


class SettledAnswer(Struct, frozen=True, kw_only=True):
    """What became of a job that was acknowledged or failed."""

    state: str = ""
    attempt: int = 0
    next_attempt_at: str = ""
    job: RemoteJob | None = None


class BeatAnswer(Struct, frozen=True, kw_only=True):
    state: str = "running"
    jobs_extended: tuple[str, ...] = ()
    cancelled_jobs: tuple[str, ...] = ()
