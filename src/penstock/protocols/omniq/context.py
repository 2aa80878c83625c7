"""What a handler of ``consume`` is given: the job of the contract, and ways to ask and tell.

The same names whichever client consumes and whichever kind of handler runs; in an async
handler the calls of ``ctx.exec`` are awaited, in a plain one they block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any

from penstock.core.context import Context, TaskLog
from penstock.protocols.omniq.wire import ReservedJob

if TYPE_CHECKING:
    from penstock.protocols.omniq.client import OmniqClient

__all__ = ["Exec", "JobContext"]


class JobContext:
    """One attempt at one job. ``lock_until_ms`` is as of the reserve; heartbeats move it on."""

    __slots__ = ("_context", "_job", "exec", "payload", "queue")

    def __init__(self, context: Context, payload: Any, exec: Exec) -> None:
        job: ReservedJob = context.wire
        self._context = context
        self._job = job
        self.queue = context.invocation.queue
        self.payload = payload
        self.exec = exec

    @property
    def job_id(self) -> str:
        return self._job.job_id

    @property
    def payload_raw(self) -> str:
        """The JSON text exactly as it was published."""
        return self._job.payload

    @property
    def attempt(self) -> int:
        return self._job.attempt

    @property
    def max_attempts(self) -> int:
        return self._job.max_attempts

    @property
    def lock_until_ms(self) -> int:
        return self._job.lock_until_ms

    @property
    def timeout_ms(self) -> int:
        return self._job.timeout_ms

    @property
    def lease_token(self) -> str:
        return self._job.lease_token

    @property
    def gid(self) -> str:
        return self._job.gid

    @property
    def lost(self) -> bool:
        """True once this run should stop: its lease is lost, or the consumer is stopping at once.

        Async handlers are also cancelled.
        """
        return self._context.lost

    def raise_if_lost(self) -> None:
        """Raise `LeaseLost` if this run should stop; for loops in plain handlers."""
        self._context.raise_if_lost()

    def checkpoint(self, value: Any) -> Awaitable[None]:
        """Keep ``value`` on the job for its next run. Awaited in async handlers only."""
        return self._context.checkpoint(value)

    @property
    def saved(self) -> Any:
        """What an earlier run kept, or ``None``."""
        return self._context.saved

    @property
    def log(self) -> TaskLog:
        return self._context.log

    def __repr__(self) -> str:
        return f"JobContext(queue={self.queue!r}, job_id={self.job_id!r}, attempt={self.attempt})"


class Exec:
    """The consumer's client at hand in a handler. ``loop``: whose calls block until it answers."""

    __slots__ = ("_client", "_job_id", "_loop")

    def __init__(
        self, client: OmniqClient, job_id: str, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        self._client = client
        self._job_id = job_id
        self._loop = loop

    def publish(self, queue: str, payload: dict[str, Any] | list[Any], **options: Any) -> Any:
        """As the client's ``publish``."""
        return self._do(self._client.publish(queue, payload, **options))

    def pause(self, queue: str) -> Any:
        return self._do(self._client.pause(queue))

    def resume(self, queue: str) -> Any:
        return self._do(self._client.resume(queue))

    def is_paused(self, queue: str) -> Any:
        return self._do(self._client.is_paused(queue))

    def childs_init(self, key: str, expected: int) -> Any:
        return self._do(self._client.childs_init(key, expected))

    def child_ack(self, key: str, child_id: str | None = None) -> Any:
        """Count a child; without an id it is this job."""
        return self._do(self._client.child_ack(key, child_id or self._job_id))

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._loop is None:
            return work
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
