"""Consuming from a program without asyncio: the same consumer, on a loop of its own."""

from __future__ import annotations

import asyncio
import threading

from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.consumer import Consumer, Consuming, Handler
from penstock.protocols.omniq.doors import OpenDoor, twin_port
from penstock.protocols.omniq.wire import Compat

__all__ = ["SyncConsumer"]


class SyncConsumer:
    """``consumer.run()`` blocks until it is stopped. Plain handlers run in threads."""

    def __init__(
        self, door: OpenDoor, compat: Compat, queue: str, handler: Handler, how: Consuming
    ) -> None:
        self._door = door
        self._compat: Compat = compat
        self._queue = queue
        self._handler = handler
        self._how = how
        self._consumer: Consumer | None = None
        self._stopped = False
        self._guard = threading.Lock()

    def run(self) -> None:
        """Consume until `stop`, SIGTERM or SIGINT (the latter in the main thread only)."""
        asyncio.run(self._run())

    def stop(self) -> None:
        """End `run` as ``drain`` says, from any thread. Safe to repeat, before the start too."""
        with self._guard:
            self._stopped = True
            if self._consumer is not None:
                self._consumer.stop()

    async def _run(self) -> None:
        client = self._client()
        consumer = Consumer(client, self._queue, self._handler, self._how)
        with self._guard:
            self._consumer = consumer
            if self._stopped:
                consumer.stop()
        try:
            await consumer.run()
        finally:
            await client.close()

    def _client(self) -> OmniqClient:
        port = twin_port(self._door)
        if port is not None:
            return OmniqClient.over(port, redis=self._door.redis, compat=self._compat)
        url = self._door.url or self._door.start_server()
        return OmniqClient(
            url, cluster=self._door.cluster, compat=self._compat, timeout=self._door.timeout
        )
