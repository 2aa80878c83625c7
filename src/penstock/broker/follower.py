"""Reading a stream in order, every record once, whatever happens to the connection.

A follower pulls through a nameless consumer without acknowledgements, so it leaves no trace
and asks for no more than it can take (a plain push subscription is cut off by the server
after some 200,000 records). What was under way when a connection broke may be lost without a
word, so after every reconnect, and at every gap in the consumer's count, the consumer is made
anew right after the last record that was handed out.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Literal

from penstock.broker.config import ConsumerConfig
from penstock.broker.errors import ConsumerGone, LinkClosed, LinkError
from penstock.broker.link import Link
from penstock.broker.puller import Message, Puller
from penstock.broker.streams import STREAM_MISSING, ApiError, JetStream
from penstock.core.ids import short_token

__all__ = ["Follower", "Start"]

Start = Literal["all", "last_per_subject", "new"] | int
_INACTIVE = timedelta(minutes=5)
_GLANCE = 0.5  # what was to come may be deleted by now: look again after that
_PATIENCE = (0.0, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)  # between tries to get the consumer back


class Follower:
    """One reader of ``stream``: call `fetch` again and again, then `stop`.

    ``start`` is a policy or the first sequence wanted. `position` is the last sequence handed
    out. `generation` grows when the stream turned out to be another one than before (deleted and
    made anew, or rolled back by a power loss): reading then began at the start again, and
    whoever keeps a copy must drop it.
    """

    def __init__(
        self,
        link: Link,
        stream: str,
        *,
        filters: Sequence[str] = (">",),
        start: Start = "all",
        headers_only: bool = False,
    ) -> None:
        self._link = link
        self._js = JetStream(link)
        self._stream = stream
        self._filters = list(filters)
        self._start = start
        self._headers_only = headers_only
        self._puller: Puller | None = None
        self._consumer = ""
        self._consumer_seq = 0
        self._left = 0
        self._created_at: datetime | None = None
        self._stale = False
        self._stopped = False
        self._tries = 0
        self._fetching: asyncio.Task[list[Message]] | None = None
        self._reconnected = _weakly(self._on_reconnect)
        self.position = 0
        self.generation = 0
        self.caught_up = False

    async def open(self) -> Follower:
        """Make the consumer. Raises `ApiError` when there is no such stream."""
        await self._open()
        self._link.on_reconnect(self._reconnected)
        return self

    async def fetch(self, most: int = 512, wait: float = 30.0) -> list[Message]:
        """The next records in order: what is there at once, or what comes first; [] after ``wait``.

        Trouble on the way is waited out within ``wait``. Raises `LinkClosed`, and `ApiError` when
        the stream is gone.
        """
        deadline = time.monotonic() + wait
        while not self._stopped:
            left = max(deadline - time.monotonic(), 0.001)
            try:
                if self._stale:
                    await self._reopen()
                batch = await self._pull(most, left if self.caught_up else min(left, _GLANCE))
                if batch == [] and not self.caught_up:
                    await self._ask_whether_caught_up()
            except LinkClosed:
                raise
            except LinkError:
                self._stale = True
                await asyncio.sleep(min(self._pause(), left))
                batch = None
            if batch and (ordered := self._in_order(batch)):
                self._tries = 0
                return ordered
            if (batch == [] and self.caught_up) or time.monotonic() >= deadline:
                return []
        return []

    async def stop(self) -> None:
        """End reading and have the consumer removed; a `fetch` under way answers []."""
        self._stopped = True
        self._link.forget(self._reconnected)
        if self._fetching is not None:
            self._fetching.cancel()
        await self._drop_consumer()

    # -- inside --------------------------------------------------------------------------

    async def _open(self) -> None:
        await self._compare_stream()
        self._consumer = f"penstock-{short_token()}"
        info = await self._js.create_consumer(self._stream, self._consumer_config())
        self._puller = await Puller.open(self._link, self._stream, self._consumer)
        self._consumer_seq = 0
        self._stale = False
        if not self.caught_up:
            self._left = info.num_pending
            self.caught_up = not self._left

    async def _reopen(self) -> None:
        if self._link.closed:
            raise LinkClosed("the link of this reader was closed")
        try:
            await self._drop_consumer()
            await self._open()
            if self._stopped:
                await self._drop_consumer()
        except ApiError as error:
            if error.err_code == STREAM_MISSING:
                raise
            raise ConsumerGone(str(error)) from error

    async def _ask_whether_caught_up(self) -> None:
        try:
            info = await self._js.consumer_info(self._stream, self._consumer)
        except ApiError as error:
            raise ConsumerGone(str(error)) from error
        self.caught_up = not info.num_pending

    async def _compare_stream(self) -> None:
        """Note where the stream is, and start again if it is not the one we were reading."""
        info = await self._js.stream_info(self._stream)
        last_seq = info.state.last_seq
        first_time = self._created_at is None
        if first_time and self._start == "new":
            self.position = last_seq
        elif not first_time and (info.created_at != self._created_at or last_seq < self.position):
            self.position = 0
            self.generation += 1
            self.caught_up = False
        self._created_at = info.created_at

    def _consumer_config(self) -> ConsumerConfig:
        config = ConsumerConfig(
            name=self._consumer,
            ack_policy="none",
            inactive_threshold=_INACTIVE,
            mem_storage=True,
            num_replicas=1,
            headers_only=self._headers_only or None,
        )
        if len(self._filters) == 1:
            config.filter_subject = self._filters[0]
        else:
            config.filter_subjects = self._filters
        return self._starting(config)

    def _starting(self, config: ConsumerConfig) -> ConsumerConfig:
        if self.position:
            config.deliver_policy = "by_start_sequence"
            config.opt_start_seq = self.position + 1
        elif isinstance(self._start, int):
            config.deliver_policy = "by_start_sequence"
            config.opt_start_seq = max(self._start, 1)
        else:  # "new" on a stream that was empty, or is another one by now: all of it is new
            config.deliver_policy = "all" if self._start == "new" else self._start
        return config

    async def _pull(self, most: int, wait: float) -> list[Message] | None:
        """What the puller gives, or None if a reconnect came in between."""
        if self._puller is None:
            return None
        self._fetching = asyncio.ensure_future(self._puller.fetch(most, wait))
        try:
            return await self._fetching
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # our caller was cancelled, not the pull
                raise
            return None
        finally:
            self._fetching = None

    def _in_order(self, batch: list[Message]) -> list[Message]:
        """The part of ``batch`` without a gap; the rest is asked for again."""
        last = batch[-1]
        if last.consumer_seq != self._consumer_seq + len(batch):
            self._stale = True
            expected = range(self._consumer_seq + 1, self._consumer_seq + 1 + len(batch))
            kept = 0
            for message, number in zip(batch, expected, strict=True):
                if message.consumer_seq != number:
                    break
                kept += 1
            if not kept:
                return []
            batch = batch[:kept]
            last = batch[-1]
        self._consumer_seq = last.consumer_seq
        self.position = last.stream_seq
        if not self.caught_up:
            self._left -= len(batch)
            self.caught_up = self._left <= 0 or last.pending == 0
        return batch

    def _on_reconnect(self) -> None:
        self._stale = True
        if self._fetching is not None:
            self._fetching.cancel()

    def _pause(self) -> float:
        self._tries += 1
        return _PATIENCE[min(self._tries, len(_PATIENCE)) - 1]

    async def _drop_consumer(self) -> None:
        puller, self._puller = self._puller, None
        if puller is None:
            return
        with contextlib.suppress(LinkError):
            await puller.stop()
            subject = f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._consumer}"
            self._link.publish(subject.encode())


def _weakly(method: Callable[[], None]) -> Callable[[], None]:
    """Links outlive their readers: what they call back must not keep a reader alive."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        alive = reference()
        if alive is not None:
            alive()

    return call
