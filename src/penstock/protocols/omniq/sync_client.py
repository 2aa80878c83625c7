"""The OmniQ client for threads: the same calls as `OmniqClient`, without ``await``.

A test keeps the two surfaces equal, names, arguments and all.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from penstock.broker.redis_port import RedisClosed, SyncRedisPort
from penstock.broker.redis_scripts import run_script_sync
from penstock.protocols.omniq import wire
from penstock.protocols.omniq.calls import Call, Lookout, Scripts, Steps
from penstock.protocols.omniq.doors import OpenDoor, open_sync_door
from penstock.protocols.omniq.errors import OmniqError
from penstock.protocols.omniq.store import (
    AckFailResult,
    Draft,
    Ended,
    IfExists,
    Options,
    Settle,
    Store,
    Turn,
)
from penstock.protocols.omniq.sync_monitor import SyncMonitor
from penstock.protocols.omniq.upkeep import BatchItem, Repair, Tended, Upkeep
from penstock.protocols.omniq.views import group_in, group_pattern
from penstock.protocols.omniq.wire import (
    DEFAULT_BACKOFF_MS,
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_TIMEOUT_MS,
    Compat,
    Lane,
    Paused,
    PublishedId,
    ReservedJob,
    ReserveResult,
)

if TYPE_CHECKING:
    from penstock.protocols.omniq.consumer import Handler, How
    from penstock.protocols.omniq.sync_consumer import SyncConsumer

__all__ = ["SyncOmniqClient"]

T = TypeVar("T")


class SyncOmniqClient:
    """``with SyncOmniqClient(url) as client: client.publish(queue="mail", payload={…})``.

    Without ``url`` and ``redis`` a Redis of our own is started (in ``folder`` if that is to be
    kept). ``redis`` takes a blocking redis-py client of yours, single or cluster; it is never
    closed here. A ``url`` may name any node of a Redis Cluster, which is seen;
    ``cluster`` insists on it. ``compat="v4"`` also maintains the statistics and indexes that
    SDK 4.x reads. Any number of threads may call.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        redis: Any = None,
        cluster: bool = False,
        compat: Compat = "v1",
        folder: str | None = None,
        timeout: float | None = 10.0,
    ) -> None:
        self._opening = OpenDoor(url, redis, cluster, folder, timeout)
        self._scripts = Scripts(compat)
        self._store = Store(self._scripts)
        self._upkeep = Upkeep(self._scripts)
        self._lookout = Lookout(self._scripts)
        self._port: SyncRedisPort | None = None
        self._closed = False
        self._gate = threading.Lock()
        self.monitor = SyncMonitor(self._scripts, self._run, self.port)

    # -- helpers of the contract ----------------------------------------------------------

    queue_base = staticmethod(wire.queue_base)
    now_ms = staticmethod(wire.now_ms)
    ulid = staticmethod(wire.ulid)

    # -- publishing -----------------------------------------------------------------------

    def publish(
        self,
        queue: str,
        payload: dict[str, Any] | list[Any],
        *,
        job_id: str | None = None,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        backoff_ms: int = DEFAULT_BACKOFF_MS,
        due_ms: int = 0,
        gid: str | None = None,
        group_limit: int = 0,
        if_exists: IfExists = "keep",
        now_ms_override: int = 0,
    ) -> PublishedId:
        """Put one job on a queue and return its id, a ``str`` that also says ``kept``.

        An id that is waiting, delayed or active is left as it is (``kept``), or refused with
        ``if_exists="error"``; a completed or failed one is run afresh. Raises `BadPayload` for
        what is no dict or list. After `RedisLost`, publish again under the same ``job_id``.
        """
        options = Options(max_attempts, timeout_ms, backoff_ms, due_ms, gid, group_limit)
        return self._run(
            self._store.publish(
                queue,
                payload,
                options,
                job_id=job_id,
                if_exists=if_exists,
                now=now_ms_override,
            )
        )

    def publish_many(
        self,
        queue: str,
        jobs: Iterable[dict[str, Any] | list[Any] | Draft],
        *,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        backoff_ms: int = DEFAULT_BACKOFF_MS,
        due_ms: int = 0,
        gid: str | None = None,
        group_limit: int = 0,
        if_exists: IfExists = "keep",
        now_ms_override: int = 0,
    ) -> list[PublishedId]:
        """Put many jobs on a queue, payloads or `Draft` values, in their order.

        Slices of 500 are one transaction each; after a failure the earlier slices stand.
        """
        options = Options(max_attempts, timeout_ms, backoff_ms, due_ms, gid, group_limit)
        return self._drive(
            self._store.publish_many(queue, jobs, options, if_exists=if_exists, now=now_ms_override)
        )

    # -- leases ---------------------------------------------------------------------------

    def reserve(self, queue: str, *, now_ms_override: int = 0) -> ReserveResult:
        """One job with its lease, ``PAUSED``, or ``None`` when nothing is there."""
        return self._run(self._store.reserve_one(queue, now=now_ms_override))

    def reserve_many(
        self,
        queue: str,
        count: int,
        *,
        now_ms_override: int = 0,
    ) -> list[ReservedJob] | Paused:
        """Up to ``count`` jobs at once."""
        return self._run(self._store.reserve(queue, count=count, now=now_ms_override))

    def heartbeat(
        self, queue: str, job_id: str, lease_token: str, *, now_ms_override: int = 0
    ) -> int:
        """Extend a lease to now + its timeout, never shorter; the new ``lock_until_ms``.

        Raises `TokenRequired`, `TokenMismatch` or `NotActive`: stop working then.
        """
        answer = (
            self.heartbeat_many(queue, [(job_id, lease_token)], now_ms_override=now_ms_override)
        )[0]
        if isinstance(answer, OmniqError):
            raise answer
        return answer

    def heartbeat_many(
        self, queue: str, leases: Sequence[tuple[str, str]], *, now_ms_override: int = 0
    ) -> list[int | OmniqError]:
        """As `heartbeat` for many (job id, token); what is lost is a member of the answer."""
        return self._run(self._store.heartbeat(queue, leases, now=now_ms_override))

    def ack_success(
        self, queue: str, job_id: str, lease_token: str, *, now_ms_override: int = 0
    ) -> None:
        """The job is done. Raises `TokenRequired`, `TokenMismatch` or `NotActive`."""
        self._run(self._store.ack_success(queue, job_id, lease_token, now=now_ms_override))

    def ack_fail(
        self,
        queue: str,
        job_id: str,
        lease_token: str,
        error: str | None = None,
        *,
        now_ms_override: int = 0,
    ) -> AckFailResult:
        """The attempt failed: ``("RETRY", due_ms)`` or, at the last, ``("FAILED", None)``."""
        return self._run(
            self._store.ack_fail(queue, job_id, lease_token, error, now=now_ms_override)
        )

    def settle(
        self, queue: str, ends: Sequence[Settle], *, now_ms_override: int = 0
    ) -> list[Ended]:
        """End many leases in one transaction; refusals are members of the answer."""
        return self._run(self._store.settle(queue, ends, now=now_ms_override))

    def turn(
        self,
        queue: str,
        ends: Sequence[Settle] = (),
        *,
        count: int = 1,
        holder: str = "",
        number: int = 0,
        now_ms_override: int = 0,
    ) -> Turn:
        """End leases and take up to ``count`` new ones in one transaction.

        A ``holder`` that gives each turn a ``number`` of its own can `regain` the leases of one
        whose answer it never heard.
        """
        return self._run(
            self._store.turn(
                queue, ends, count=count, holder=holder, number=number, now=now_ms_override
            )
        )

    def regain(
        self, queue: str, holder: str, number: int, *, now_ms_override: int = 0
    ) -> list[ReservedJob]:
        """The leases that ``holder`` was given in that turn and that are still its own."""
        jobs = self._run(self._store.regain(queue, holder, number, now=now_ms_override))
        return [] if isinstance(jobs, Paused) else jobs

    def ended_by(self, queue: str, end: Settle) -> Ended | None:
        """Whether a lease was ended by this very `Settle`, told without hearing the answer."""
        return self._run(self._store.ended_by(queue, end))

    def checkpoint(self, queue: str, job_id: str, lease_token: str, notes: bytes) -> None:
        """Keep notes on the job for its next run, while the lease holds; ``b""`` forgets them."""
        self._run(self._store.checkpoint(queue, job_id, lease_token, notes))

    def result(self, queue: str, job_id: str) -> bytes | None:
        """What a job left with ``Settle.succeed(result=…)``, while it is kept."""
        return self._run(self._store.result(queue, job_id))

    # -- upkeep ---------------------------------------------------------------------------

    def promote_delayed(
        self, queue: str, max_promote: int = 1000, *, now_ms_override: int = 0
    ) -> int:
        """Move jobs that are due to their lanes; how many. Works while paused."""
        return self._drive(self._upkeep.promote(queue, most=max_promote, now=now_ms_override))

    def reap_expired(self, queue: str, max_reap: int = 1000, *, now_ms_override: int = 0) -> int:
        """End leases that lapsed, each as a failed attempt; how many."""
        return self._drive(self._upkeep.reap(queue, most=max_reap, now=now_ms_override))

    def tend(
        self,
        queue: str,
        max_promote: int = 1000,
        max_reap: int = 1000,
        *,
        now_ms_override: int = 0,
    ) -> Tended:
        """One round of a consumer: promote and reap in one transaction."""
        return self._run(self._upkeep.tend(queue, max_promote, max_reap, now=now_ms_override))

    def pause(self, queue: str) -> str:
        """No new leases from now on; running and waiting jobs stay as they are. ``"OK"``."""
        return self._run(self._upkeep.pause(queue))

    def resume(self, queue: str) -> int:
        """1 if the queue was paused, else 0."""
        return self._run(self._upkeep.resume(queue))

    def is_paused(self, queue: str) -> bool:
        """Whether the queue is paused."""
        return self._run(self._upkeep.is_paused(queue))

    def retry_failed(self, queue: str, job_id: str, *, now_ms_override: int = 0) -> None:
        """A failed job waits again, with all its attempts. Raises `NoJob` or `NotFailed`."""
        self._run(self._upkeep.retry_failed(queue, job_id, now=now_ms_override))

    def retry_failed_batch(
        self, queue: str, job_ids: Sequence[str], *, now_ms_override: int = 0
    ) -> list[BatchItem]:
        """As `retry_failed` for up to 100 ids, an answer for each."""
        return self._drive(self._upkeep.retry_failed_batch(queue, job_ids, now=now_ms_override))

    def remove_job(self, queue: str, job_id: str, lane: Lane) -> str:
        """Take a job out of its lane for good: ``"OK"``, or the typed refusal."""
        return self._run(self._upkeep.remove_job(queue, job_id, lane))

    def remove_jobs_batch(self, queue: str, lane: Lane, job_ids: Sequence[str]) -> list[BatchItem]:
        """As `remove_job` for up to 100 ids, an answer for each."""
        return self._drive(self._upkeep.remove_jobs_batch(queue, lane, job_ids))

    def childs_init(self, key: str, expected: int) -> None:
        """Begin a fan-out of ``expected`` children. Raises `BadExpected` or `AlreadyInit`."""
        self._run(self._upkeep.childs_init(key, expected))

    def child_ack(self, key: str, child_id: str) -> int:
        """Count a child once; how many are missing, −1 where nothing is counted (any more)."""
        return self._run(self._upkeep.child_ack(key, child_id))

    def has_mirrors(self, queue: str) -> bool:
        """Whether anybody keeps the statistics and indexes of SDK 4.x for this queue."""
        return self._run(self._upkeep.has_mirrors(queue))

    def rebuild(
        self, queue: str, *, mirrors: bool | None = None, now_ms_override: int = 0
    ) -> Repair:
        """Recount groups and, with ``mirrors`` (as ``compat`` says, if not given), rebuild what
        SDK 4.x reads, after clients that did not keep it or a crash of theirs."""
        port = self.port()
        found = list(port.scan(group_pattern(queue)))
        gids = sorted({group_in(queue, key) for key in found})
        return self._drive(
            self._upkeep.rebuild(
                queue,
                gids,
                mirrors=self._scripts.compat == "v4" if mirrors is None else mirrors,
                now=now_ms_override,
            )
        )

    # -- consuming ------------------------------------------------------------------------

    def consume(
        self,
        queue: str,
        handler: Handler,
        *,
        concurrency: int = 1,
        drain: bool = True,
        poll_interval_s: float = 0.05,
        promote_interval_s: float = 1.0,
        promote_batch: int = 1000,
        reap_interval_s: float = 1.0,
        reap_batch: int = 1000,
        heartbeat_interval_s: float | None = None,
        verbose: bool = False,
        logger: logging.Logger | None = None,
    ) -> None:
        """Run ``handler(ctx)`` for the jobs of a queue until stopped; see `JobContext`.

        ``concurrency`` jobs run at once, async handlers on the loop, plain ones in threads.
        Stops by SIGTERM or SIGINT (or `Consumer.stop`, see `consumer`): with ``drain`` what
        runs may finish, without it is given back at once and keeps its attempt. What other SDKs
        call the two intervals is one round here, at the shorter of both.
        """
        consumer = self.consumer(
            queue,
            handler,
            concurrency=concurrency,
            drain=drain,
            poll_interval_s=poll_interval_s,
            promote_interval_s=promote_interval_s,
            promote_batch=promote_batch,
            reap_interval_s=reap_interval_s,
            reap_batch=reap_batch,
            heartbeat_interval_s=heartbeat_interval_s,
            verbose=verbose,
            logger=logger,
        )
        consumer.run()

    def consumer(self, queue: str, handler: Handler, **how: Unpack[How]) -> SyncConsumer:
        """A consumer to `run`, and to `stop` from any thread; ``how`` is as for `consume`."""
        from penstock.protocols.omniq.consumer import Consuming
        from penstock.protocols.omniq.sync_consumer import SyncConsumer

        return SyncConsumer(self._opening, self._scripts.compat, queue, handler, Consuming(**how))

    # -- the connection -------------------------------------------------------------------

    def port(self) -> SyncRedisPort:
        """The open connection; the first call opens it."""
        if self._port is None:
            with self._gate:
                if self._closed:
                    raise RedisClosed("the OmniQ client was closed")
                if self._port is None:
                    self._port = open_sync_door(self._opening)
        return self._port

    def close(self) -> None:
        """Close what this client opened itself, an embedded server included."""
        with self._gate:
            self._closed = True
            port, self._port = self._port, None
            if port is not None:
                port.close()
            self._opening.stop_server()

    def __enter__(self) -> Self:
        self.port()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, call: Call[T]) -> T:
        port = self._port or self.port()
        question = self._lookout.question(call.key)
        if question is not None:
            question.read(run_script_sync(port, question.script, question.key, question.args))
        return call.read(run_script_sync(port, call.script, call.key, call.args))

    def _drive(self, steps: Steps[T]) -> T:
        answer: Any = None
        while True:
            try:
                call = steps.send(answer)
            except StopIteration as done:
                result: T = done.value
                return result
            answer = self._run(call)
