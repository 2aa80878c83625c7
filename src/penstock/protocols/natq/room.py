"""Everything natq keeps on a server, made when absent and otherwise taken as found.

The order is that of the seed: tasks bucket, results bucket, stream, definitions; then the
worker subscribes and binds its consumers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.broker.bucket import Bucket, BucketConfig
from penstock.broker.objects import ObjectStore
from penstock.broker.publisher import Publisher, Stored
from penstock.broker.streams import ConsumerConfig, ConsumerInfo, JetStream, StreamConfig
from penstock.core import codec
from penstock.core.errors import PenstockError
from penstock.core.task import Task
from penstock.protocols.natq.options import NatqOptions
from penstock.protocols.natq.wire import (
    TaskDefinition,
    TaskType,
    check_task_id,
    consumer_name,
)

if TYPE_CHECKING:
    from penstock.broker.link import Link

__all__ = ["Room", "definition_of"]


class NotAnnounced(PenstockError):
    """A task's definition could not be written for producers to find."""

    code = "natq.announce"
    remedy = "see whether the tasks bucket is full or read-only for this user"


@dataclass(slots=True)
class Room:
    """One natq on one server: its buckets, its stream, and how to bind to them."""

    link: Link
    options: NatqOptions
    jetstream: JetStream
    publisher: Publisher
    tasks: Bucket
    results: Bucket
    _large: ObjectStore | None = None
    _errands: set[asyncio.Task[None]] = field(default_factory=set)

    @classmethod
    async def open(cls, link: Link, options: NatqOptions) -> Room:
        """Make or find the two buckets. The stream is made with the first async task."""
        kept = _bucket_config(options)
        tasks = await Bucket.open(link, options.tasks_bucket, create=kept)
        results = await Bucket.open(link, options.results_bucket, create=kept)
        return cls(link, options, JetStream(link), Publisher(link), tasks, results)

    async def ensure_results(self) -> None:
        """Make the results bucket again if somebody deleted it while we work."""
        options = self.options
        await Bucket.open(self.link, options.results_bucket, create=_bucket_config(options))

    async def ensure_stream(self) -> None:
        await self.jetstream.ensure_stream(
            StreamConfig(
                name=self.options.stream,
                subjects=[f"{self.options.async_prefix}>"],
                retention="workqueue",
                storage="file",
                discard="new",
                num_replicas=self.options.replicas,
            )
        )

    async def ensure_consumer(self, task_id: str) -> ConsumerInfo:
        """The durable that all workers of the task share, with the server's defaults."""
        return await self.jetstream.ensure_consumer(
            self.options.stream,
            ConsumerConfig(
                durable_name=consumer_name(task_id),
                filter_subject=self.options.async_prefix + task_id,
                ack_policy="explicit",
                deliver_policy="all",
            ),
        )

    async def ensure_dead_letters(self) -> None:
        """Where copies of jobs that used up their attempts are kept, outside the job subjects."""
        await self.jetstream.ensure_stream(
            StreamConfig(
                name=self.options.dead_stream,
                subjects=[f"{self.options.dead_prefix}>"],
                retention="limits",
                storage="file",
                num_replicas=self.options.replicas,
            )
        )

    async def announce(self, definitions: Iterable[TaskDefinition]) -> None:
        """Write what producers find."""
        for definition in definitions:
            answer = await self.tasks.put(definition.id, codec.encode(definition))
            if not isinstance(answer, Stored):
                raise NotAnnounced(f"the definition of {definition.id!r} was refused: {answer}")

    async def large_results(self) -> ObjectStore:
        """Where results larger than a message are kept."""
        if self._large is None:
            self._large = await ObjectStore.open(
                self.link,
                self.options.large_bucket,
                create=True,
                replicas=self.options.replicas,
                ttl=self.options.result_ttl,
            )
        return self._large

    def background(self, errand: Coroutine[Any, Any, None]) -> None:
        """Do something that nobody waits for; `settle_errands` does, before the link closes."""
        task = asyncio.get_running_loop().create_task(errand, name="natq:errand")
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def settle_errands(self) -> None:
        if self._errands:
            await asyncio.wait(set(self._errands), timeout=5)


def _bucket_config(options: NatqOptions) -> BucketConfig:
    return BucketConfig(history=1, replicas=options.replicas, allow_msg_ttl=True)


def definition_of(task: Task, options: NatqOptions) -> TaskDefinition:
    """What producers are told about ``task``."""
    task_id = check_task_id(task.name_on("natq"))
    prefix = options.sync_prefix if task.replies else options.async_prefix
    return TaskDefinition(
        id=task_id,
        type=TaskType.SYNC if task.replies else TaskType.ASYNC,
        subject=prefix + task_id,
        input_schema=_schema_text(task.binding.input_schema),
        output_schema=_schema_text(task.binding.output_schema),
    )


def _schema_text(schema: Mapping[str, Any] | None) -> str | None:
    return None if schema is None else json.dumps(schema, separators=(",", ":"))
