"""One OmniQ job in hand: the `Delivery` that the runtime renews and settles.

The lease is confirmed: every heartbeat and every end is answered by the store, which compares
the token of the lease. Whoever lost it is refused and has changed nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from penstock.core import codec, points
from penstock.core.context import LeaseLost
from penstock.core.delivery import Gone, Progress, Renewal, Renewed, Settlement, Unknown
from penstock.core.errors import PenstockError
from penstock.core.invocation import Checkpoint, Invocation
from penstock.core.lease import Lease, Proof
from penstock.core.outcome import Outcome
from penstock.protocols.omniq.errors import NotActive, OmniqError, TokenMismatch
from penstock.protocols.omniq.rules import decode_checkpoint, settled, settlement
from penstock.protocols.omniq.wire import ReservedJob, now_ms

if TYPE_CHECKING:
    from penstock.protocols.omniq.worker import QueueSource

__all__ = ["Job"]


class Job:
    """A leased job and how to end its lease."""

    __slots__ = ("_job", "_source", "invocation", "lease")

    def __init__(self, source: QueueSource, job: ReservedJob, body: Any) -> None:
        self._source = source
        self._job = job
        kept = decode_checkpoint(job.checkpoint) if job.checkpoint else None
        self.lease: Lease | None = source.lease_of(job)
        self.invocation = Invocation(
            protocol="omniq",
            task=source.task,
            work_id=job.job_id,
            body=body,
            attempt=job.attempt,
            delivery=job.attempt + job.returned,
            max_attempts=job.max_attempts,
            iteration=0 if kept is None else kept.iteration,
            checkpoint=kept,
            queue=source.queue,
            group=job.gid,
            wire=job,
        )

    async def renew(self) -> Renewal:
        try:
            answer = await self._source.beats.beat(self._job)
        except PenstockError as error:
            return Unknown(error.message)
        if isinstance(answer, OmniqError):
            return Gone(answer.message)
        return Renewed(datetime.fromtimestamp(answer / 1000, UTC))

    async def settle(self, outcome: Outcome) -> Settlement:
        source, job = self._source, self._job
        end = settlement(
            outcome,
            job,
            policy=source.policy,
            kept=self.invocation.checkpoint,
            result_ttl=source.options.result_ttl,
        )
        if end is None:
            return Gone(getattr(outcome, "reason", ""))
        ended = await source.turns.end(end)
        if ended is None:
            return Unknown("Redis did not answer whether the job was ended")
        if ended.due_ms:
            source.rounds.expect((ended.due_ms - source.turns.skew_ms - now_ms()) / 1000)
        return settled(outcome, ended, job)

    async def save(self, checkpoint: Any) -> None:
        job = self._job
        notes = codec.encode(Checkpoint(checkpoint, self.invocation.iteration))
        try:
            await self._source.client.checkpoint(
                self._source.queue, job.job_id, job.lease_token, notes
            )
        except (TokenMismatch, NotActive) as error:
            raise LeaseLost(error.message) from error
        if points.armed:
            points.reach("omniq.checkpointed")

    async def note(self, progress: Progress) -> None:  # noqa: ARG002 - OmniQ has no place for it
        return


def lease_term(job: ReservedJob, holder: str, longest: timedelta) -> Lease:
    """The lease as the runtime keeps it: three chances to renew within its term."""
    term = timedelta(milliseconds=job.timeout_ms)
    until = datetime.fromtimestamp(job.lock_until_ms / 1000, UTC)
    return Lease(holder, job.lease_token, term, until, Proof.CONFIRMED, min(term / 3, longest))
