"""Producing for the tasks of an application: inputs are checked, and the job carries the policy.

OmniQ's jobs bring their own number of attempts and their own constant backoff; what a task was
declared with is stamped on them here, and means nothing to the worker later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import msgspec

from penstock.core.invocation import MISSING
from penstock.core.policy import RetryPolicy
from penstock.core.registry import Registry
from penstock.core.task import Task
from penstock.protocols.omniq.store import Draft
from penstock.protocols.omniq.wire import PublishedId

if TYPE_CHECKING:
    from penstock.protocols.omniq.client import OmniqClient

__all__ = ["JobOptions", "Producer", "queue_for", "submission"]

_UNSAID = RetryPolicy()


class JobOptions(TypedDict, total=False):
    """What a job may be given besides its input; see ``publish``."""

    job_id: str
    max_attempts: int
    timeout_ms: int
    backoff_ms: int
    due_ms: int
    gid: str
    group_limit: int


class Producer:
    """``await Producer(client, app.registry).enqueue(resize, image="cat.png")``."""

    def __init__(self, client: OmniqClient, tasks: Registry, **options: Unpack[JobOptions]) -> None:
        self._client = client
        self._tasks = tasks
        self._options = options

    def having(self, **options: Unpack[JobOptions]) -> Producer:
        """The same, for jobs that differ: ``jobs.having(gid="ann").enqueue(…)``."""
        merged: JobOptions = {**self._options, **options}
        return Producer(self._client, self._tasks, **merged)

    async def enqueue(
        self, task: str | Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> PublishedId:
        """Put one job in the task's queue; it is stored when this returns.

        Raises `BadInput` for arguments that do not fit, `BadPayload` for an input that is
        neither an object nor an array.
        """
        known = self._tasks.of(task)
        draft = submission(known, *args, options=self._options, **kwargs)
        (published,) = await self._client.publish_many(queue_for(known), [draft])
        return published


def submission(
    task: Task, /, *args: Any, options: JobOptions | None = None, **kwargs: Any
) -> Draft:
    """The job that these arguments make, with the task's policy where ``options`` has none."""
    body = task.binding.body_of(args, kwargs)
    stamped: JobOptions = {}
    if task.retry.max_attempts is not None:
        stamped["max_attempts"] = task.retry.max_attempts
    if task.retry != _UNSAID:
        stamped["backoff_ms"] = round(task.retry.backoff.base.total_seconds() * 1000)
    draft = Draft(payload={} if body is MISSING else body)
    return msgspec.structs.replace(draft, **{**stamped, **(options or {})})


def queue_for(task: Task) -> str:
    """The queue of a task: its name for OmniQ if given, its ``queue=``, or its name."""
    return task.names.get("omniq") or task.queue or task.name
