"""The OmniQ worker's side of the port: each queue is a `Source` of leased jobs.

A job's life, and what a crash leaves in each gap:

    reserve [1] handler [2] end (and reserve the next) [3]

[1] [2] the lease lapses and any consumer's reaper lets the job wait again, with the attempt
counted; [3] the end is written and the next jobs are leased in one transaction: those leases
lapse as in [1]. Everything is fenced by the token: a worker that was frozen while another
took over is refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.redis_port import RedisLost, RedisUnreachable
from penstock.broker.resp import RedisRefused
from penstock.core import codec, points
from penstock.core.delivery import Facilities, Facility, SourceLost
from penstock.core.errors import PenstockError
from penstock.core.lease import Lease
from penstock.core.policy import RetryPolicy
from penstock.protocols.omniq.beats import Beats
from penstock.protocols.omniq.doorbell import Doorbell
from penstock.protocols.omniq.job import Job, lease_term
from penstock.protocols.omniq.options import OmniqOptions
from penstock.protocols.omniq.rounds import Rounds
from penstock.protocols.omniq.store import Settle
from penstock.protocols.omniq.turns import Turns
from penstock.protocols.omniq.wire import ReservedJob

if TYPE_CHECKING:
    from penstock.protocols.omniq.client import OmniqClient

__all__ = ["QueueSource", "facilities"]

_log = logging.getLogger("penstock.omniq")

_MISLED_S: Final = 0.05  # a bell that rings for nothing is believed a little later each time
_LONGEST_MISLED_S: Final = 1.0
_ANY_ERROR: Final = RetryPolicy()


def facilities(options: OmniqOptions) -> Facilities:
    """What OmniQ can do for a handler."""
    result = Facility.NONE if options.result_ttl is None else Facility.SIDE
    return Facilities(checkpoint=Facility.NATIVE, result=result)


class QueueSource:
    """The jobs of one queue. Make it on the loop that uses it; ``holder`` names the worker.

    ``raw``: hand out payloads that are not JSON as text, as other SDKs do, instead of
    rejecting them.
    """

    def __init__(
        self,
        client: OmniqClient,
        queue: str,
        task: str,
        options: OmniqOptions | None = None,
        *,
        holder: str = "",
        policy: RetryPolicy = _ANY_ERROR,
        raw: bool = False,
    ) -> None:
        self.client = client
        self.queue = queue
        self.task = task
        self.options = options or OmniqOptions()
        self.policy = policy
        self.facilities = facilities(self.options)
        self.turns = Turns(client, queue)
        self.beats = Beats(client, queue)
        self.rounds = Rounds(client, queue, self.options)
        self._bell = Doorbell(client, queue, self.options.poll)
        self._holder = holder
        self._raw = raw
        self._misled = 0
        self._nap: asyncio.Task[bool] | None = None
        self._stopped = False

    @property
    def name(self) -> str:
        return f"omniq:{self.queue}"

    async def take(self, most: int, wait: timedelta) -> Sequence[Job]:
        """As the port says; also keeps the queue in order while it is served."""
        self.rounds.start()
        loop = asyncio.get_running_loop()
        until = loop.time() + wait.total_seconds()
        while True:
            taken = () if self._bell.quiet else await self.turns.take(most)
            jobs = [job for one in taken or self.turns.spare(most) if (job := self._read(one))]
            if jobs:
                self._misled = 0
                if points.armed:
                    points.reach("omniq.taken")
                return jobs
            left_s = until - loop.time()
            if self._stopped or not await self._arrival(max(left_s, 0.0)) or left_s <= 0:
                break  # not before the bell is armed, however short the wait
        return ()

    async def waiting(self) -> int | None:
        """Jobs that could be taken now, as far as they can be counted without looking at each."""
        try:
            counts = await self.client.monitor.counts(self.queue)
        except PenstockError:
            return None
        return 0 if counts.paused else counts.wait + counts.groups_ready

    async def stop(self) -> None:
        self._stopped = True
        if self._nap is not None:
            self._nap.cancel()
        self._bell.close()
        await self.rounds.stop()
        await self.turns.stop()

    def lease_of(self, job: ReservedJob) -> Lease:
        return lease_term(job, self._holder, self.options.heartbeat)

    async def _arrival(self, within_s: float) -> bool:
        """Sleep until there may be work; `stop` ends it."""
        if self._misled:  # lanes that are never empty and give nothing: ids without a job
            pause_s = min(_MISLED_S * self._misled, _LONGEST_MISLED_S, within_s)
            within_s -= pause_s
            await asyncio.sleep(pause_s)
        self._nap = asyncio.create_task(self._bell.arrival(within_s), name=f"bell:{self.queue}")
        try:
            await asyncio.wait((self._nap,))
            came = not self._nap.cancelled() and self._nap.result()
        except (RedisLost, RedisUnreachable, RedisRefused) as error:
            raise SourceLost(error.message) from error
        finally:
            self._nap.cancel()
            self._nap = None
        self._misled = self._misled + 1 if came else 0
        return came

    def _read(self, job: ReservedJob) -> Job | None:
        """The job with its body; what is not JSON can never succeed, and is put away."""
        body: Any
        try:
            body = codec.decode(job.payload)
        except codec.JsonError as error:
            if not self._raw:
                _log.error("job %s of queue %s is not JSON: %s", job.job_id, self.queue, error)
                told = f"BadInput: the payload is not JSON: {error}"
                self.turns.end(Settle.reject(job.job_id, job.lease_token, error=told))
                return None
            body = job.payload
        return Job(self, job, body)
