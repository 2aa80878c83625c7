"""The natq worker's side of the port: each async task is a `Source`, each sync task a door.

A job's life on the wire, and what a crash leaves in each gap:

    deliver [1] processing record [2] handler [3] final record [4] ack [5] drop

[1] [2] [3] the message comes back, and the record says how often it ran; [4] it comes back,
the final record is found and the message is settled without running; [5] a result that was
to be dropped stays until somebody drops it.

Every write after the first expects the revision it replaces: a worker that was frozen
while another took over is refused, is told `Gone`, and neither acks nor writes.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from penstock.broker.checkpoints import Checkpoints
from penstock.broker.errors import ConsumerGone, LinkError
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.broker.publisher import Stored
from penstock.broker.puller import Puller
from penstock.broker.streams import ApiError, ConsumerConfig, ConsumerInfo
from penstock.core import points
from penstock.core.delivery import Facilities, Facility, SourceLost
from penstock.core.lease import Lease, Proof
from penstock.core.policy import RetryPolicy
from penstock.core.task import Task
from penstock.protocols.natq.admission import Admission, Admitted
from penstock.protocols.natq.dead import bury
from penstock.protocols.natq.job import Job
from penstock.protocols.natq.options import NatqOptions
from penstock.protocols.natq.records import Records, lost_race
from penstock.protocols.natq.requests import RequestDoor
from penstock.protocols.natq.results import final_record
from penstock.protocols.natq.room import Room, definition_of
from penstock.protocols.natq.rules import FAULT_DELAY, exhausted
from penstock.protocols.natq.schemas import ResultCheck
from penstock.protocols.natq.wire import TaskDefinition, check_task_id, consumer_name

__all__ = ["FACILITIES", "JobSource", "NatqWorker", "open_worker"]

_log = logging.getLogger("penstock.natq")

FACILITIES: Final = Facilities(checkpoint=Facility.SIDE, give_back=Facility.SIDE)
_ACK_WAIT: Final = timedelta(seconds=30)  # the server's default, and the protocol's


class JobSource:
    """Jobs of one async task, from the durable consumer that all its workers share."""

    facilities = FACILITIES

    def __init__(
        self, room: Room, task: Task, worker_id: str, check: ResultCheck | None = None
    ) -> None:
        self.room = room
        self.check = check
        self.options = room.options
        self.task = task.name
        self.task_id = check_task_id(task.name_on("natq"))
        self.policy = _policy(task, room.options)
        self.dice = random.Random()
        self.log_ids = {"workerId": worker_id, "taskId": self.task_id}
        self.records = Records(
            room.results,
            self.task_id,
            ttl=room.options.result_ttl,
            worker_id=worker_id,
            remake=room.ensure_results,
        )
        self.checkpoints = Checkpoints(
            room.link, "natq", room.options.checkpoints_bucket, replicas=room.options.replicas
        )
        self.lease = Lease(worker_id, "", _ACK_WAIT, None, Proof.INFERRED, room.options.heartbeat)
        self._admission = Admission(
            room, self.task_id, self.records, self.checkpoints, self.log_ids
        )
        self._puller: Puller | None = None
        self._stopped = False

    @property
    def name(self) -> str:
        return f"natq:{self.options.async_prefix}{self.task_id}"

    async def bind(self) -> None:
        """Make stream and consumer if they are gone, and open a pull on them."""
        await self.room.ensure_stream()
        consumer = await self.room.ensure_consumer(self.task_id)
        if points.armed:
            points.reach("natq.bound")
        self._warn_of_limits(consumer.config)
        term = _ack_wait_of(consumer)  # a consumer that others made may have a short one
        beat = min(self.options.heartbeat, term / 3)
        self.lease = replace(self.lease, term=term, renew_every=beat)
        self._puller = await Puller.open(
            self.room.link, self.options.stream, consumer_name(self.task_id)
        )

    def _warn_of_limits(self, made: ConsumerConfig) -> None:
        """A consumer that others made may lose jobs without a word: say so."""
        if made.max_deliver is not None and made.max_deliver > 0:
            _log.warning(
                "consumer %s gives up after %d deliveries: such jobs stay at 100 for ever",
                consumer_name(self.task_id),
                made.max_deliver,
                extra=self.log_ids,
            )

    async def take(self, most: int, wait: timedelta) -> Sequence[Job]:
        try:
            if self._puller is None:
                await self.bind()
            assert self._puller is not None  # bind() opened it
            messages = await self._puller.fetch(most, wait.total_seconds())
        except (ConsumerGone, LinkError, ApiError) as error:
            if self._stopped:
                return []
            await self._unbind()
            raise SourceLost(error.message) from error
        if not messages:
            return []
        if points.armed:
            points.reach("natq.delivered")
        return [Job(self, one) for one in await self._unspent(messages)]

    async def waiting(self) -> int | None:
        try:
            info = await self.room.jetstream.consumer_info(
                self.options.stream, consumer_name(self.task_id)
            )
        except (LinkError, ApiError):
            return None
        most = info.config.max_ack_pending or 0
        if 0 < most <= info.num_ack_pending:  # as many are held as may be held at once
            return 0
        return info.num_pending

    async def stop(self) -> None:
        self._stopped = True
        await self._unbind()

    async def _unbind(self) -> None:
        puller, self._puller = self._puller, None
        if puller is not None:
            await puller.stop()

    async def _unspent(self, messages: Sequence[Message]) -> list[Admitted]:
        """Those that may run; one whose attempts are used up is buried: it kills workers."""
        admitted = await self._admission.admit(messages)
        limit = self.policy.max_attempts
        if limit is None:
            return admitted
        for one in admitted:
            if one.attempt > limit:
                await self._bury(one)
        return [one for one in admitted if one.attempt <= limit]

    async def _bury(self, admitted: Admitted) -> None:
        given, message = admitted.given, admitted.message
        output = exhausted(self.task_id, given.run_id, admitted.attempt - 1)
        _log.error("%s", output.error, extra={**self.log_ids, "runId": given.run_id})
        await bury(self.room, message, output, admitted.attempt - 1)
        final = await final_record(output, self.room)
        written = await self.records.finish(
            given.run_id,
            final.record,
            revision=admitted.revision,
            seq=message.stream_seq,
            attempt=admitted.attempt,
        )
        if points.armed:
            points.reach("natq.finished")
        if isinstance(written, Stored):
            message.term(str(output.error))
        elif not lost_race(written):  # whoever won the race settles it
            message.nak(FAULT_DELAY)


class NatqWorker:
    """What an application serves on natq: doors for requests, sources for jobs."""

    def __init__(
        self, room: Room, sources: Sequence[JobSource], doors: Sequence[RequestDoor]
    ) -> None:
        self.room = room
        self.sources = sources
        self.doors = doors


async def open_worker(
    link: Link,
    tasks: Iterable[Task],
    options: NatqOptions,
    worker_id: str,
    definitions: Mapping[str, TaskDefinition] | None = None,
) -> NatqWorker:
    """Prepare the server for ``tasks`` in the seed's order, up to their consumers.

    ``definitions``: what to announce of them by name, instead of what their signatures say.
    The runtime then starts the doors first and pulls from the sources after that.
    """
    served = list(tasks)
    told = {task.name: definition_of(task, options) for task in served} | dict(definitions or {})
    checks = {name: ResultCheck(one) for name, one in told.items() if options.enforce_schemas}
    room = await Room.open(link, options)
    jobs = [task for task in served if not task.replies]
    if jobs:
        await room.ensure_stream()
        if any(_policy(task, options).max_attempts for task in jobs) and options.dead_letters:
            await room.ensure_dead_letters()
    if points.armed:
        points.reach("natq.streams_made")
    await room.announce(told.values())
    if points.armed:
        points.reach("natq.announced")
    ids = {"workerId": worker_id}
    doors = [RequestDoor(room, task, ids, checks.get(task.name)) for task in served if task.replies]
    sources = [JobSource(room, task, worker_id, checks.get(task.name)) for task in jobs]
    for source in sources:
        await source.bind()
    return NatqWorker(room, sources, doors)


def _policy(task: Task, options: NatqOptions) -> RetryPolicy:
    """The task's own limit wins over the one of the settings; without either there is none."""
    if task.retry.max_attempts is None:
        return task.retry.limited(options.max_attempts)
    return task.retry


def _ack_wait_of(consumer: ConsumerInfo) -> timedelta:
    """How long the server really waits: a consumer's backoff list replaces its ack wait."""
    config = consumer.config
    if config.backoff:
        return config.backoff[0]
    return config.ack_wait or _ACK_WAIT
