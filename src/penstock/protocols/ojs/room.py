"""Everything OJS keeps on a server, made when absent and otherwise taken as found.

The stream `OJS` carries wake-ups and holds no truth; the buckets hold everything. A bucket
keeps one value per key: with more, a record that ends would uncover the one beneath it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from penstock.broker.bucket import Bucket, BucketConfig
from penstock.broker.publisher import Publisher
from penstock.broker.streams import ConsumerConfig, JetStream, StreamConfig
from penstock.protocols.ojs import names
from penstock.protocols.ojs.options import OjsOptions

if TYPE_CHECKING:
    from penstock.broker.link import Link

__all__ = ["EVENTS", "Room"]

EVENTS: Final = "OJS_EVENTS"
ACK_WAIT: Final = timedelta(seconds=60)
_WORKERS_TTL: Final = timedelta(hours=1)


class Room:
    """The buckets and streams of one OJS on one server. Make it with `open`."""

    def __init__(
        self, link: Link, options: OjsOptions, buckets: Mapping[names.Bucket, Bucket]
    ) -> None:
        self.link = link
        self.options = options
        self.js = JetStream(link)
        self.publisher = Publisher(link)
        self.jobs = buckets[names.Bucket.JOBS]
        self.queues = buckets[names.Bucket.QUEUES]
        self.crons = buckets[names.Bucket.CRON]
        self.workers = buckets[names.Bucket.WORKERS]
        self.workflows = buckets[names.Bucket.WORKFLOWS]
        self.unique = buckets[names.Bucket.UNIQUE]
        self.schemas = buckets[names.Bucket.SCHEMAS]
        self.webhooks = buckets[names.Bucket.WEBHOOKS]
        self._consumers: set[str] = set()
        self.replicated = options.replicas > 1

    @classmethod
    async def open(cls, link: Link, options: OjsOptions) -> Room:
        """Make what is missing. Safe from many processes at once."""
        js = JetStream(link)
        await js.ensure_stream(_transport(options))
        if options.events:
            await js.ensure_stream(_events(options))
        opened = await asyncio.gather(
            *(Bucket.open(link, name, _bucket_config(name, options)) for name in names.BUCKETS)
        )
        room = cls(link, options, dict(zip(names.BUCKETS, opened, strict=True)))
        room.replicated = (await room.jobs.status()).replicas > 1
        return room

    async def ensure_consumer(self, queue: str) -> str:
        """The durable pull consumer of a queue's wake-ups; its name."""
        name = names.consumer_name(queue)
        if name not in self._consumers:
            config = ConsumerConfig(
                durable_name=name,
                filter_subject=names.queue_subject(queue),
                ack_policy="explicit",
                ack_wait=ACK_WAIT,
                max_ack_pending=-1,
                max_deliver=-1,
            )
            await self.js.ensure_consumer(names.STREAM, config)
            self._consumers.add(name)
        return name

    def forget_consumers(self) -> None:
        """The stream or its consumers may be gone: look again before relying on them."""
        self._consumers.clear()

    async def wipe(self) -> None:
        """Remove everything (test runs only). Buckets get a marker that tells every instance
        to drop what it knows, in order with what comes after."""
        await self.js.purge(names.STREAM)
        if self.options.events:
            await self.js.purge(EVENTS)
        await self.js.purge(self.unique.stream)
        for bucket in (self.schemas, self.webhooks):
            await self.js.purge(bucket.stream)
            await bucket.put(WIPED, b"{}")
        for bucket in (self.workflows, self.crons, self.workers, self.queues, self.jobs):
            if bucket is self.queues:
                for kind in ("queue", "limit"):
                    await self.js.purge(bucket.stream, subject=f"{bucket.prefix}{kind}.>")
            else:
                await self.js.purge(bucket.stream)
            await bucket.put(WIPED, b"{}")


WIPED: Final = "wiped"


def _transport(options: OjsOptions) -> StreamConfig:
    return StreamConfig(
        name=names.STREAM,
        subjects=[names.STREAM_SUBJECTS],
        retention="workqueue",
        storage="file",
        discard="new",
        duplicate_window=timedelta(minutes=2),
        num_replicas=options.replicas,
        allow_direct=True,
    )


def _events(options: OjsOptions) -> StreamConfig:
    return StreamConfig(
        name=EVENTS,
        subjects=[names.EVENT_SUBJECTS],
        retention="limits",
        storage="file",
        discard="old",
        max_age=options.keep_events,
        max_msgs=options.max_events,
        duplicate_window=timedelta(minutes=2),
        num_replicas=options.replicas,
        allow_direct=True,
    )


def _bucket_config(name: names.Bucket, options: OjsOptions) -> BucketConfig:
    ttl = _WORKERS_TTL if name is names.Bucket.WORKERS else None
    return BucketConfig(
        history=1,
        ttl=ttl,
        replicas=options.replicas,
        allow_msg_ttl=True,
        marker_ttl=timedelta(seconds=30) if name is names.Bucket.WORKERS else None,
    )
