"""A copy of a bucket, or of part of a stream, kept in memory by following it.

Listings, counters and due times are answered from such a copy, never by listing keys. The
copy lags behind by what is under way; whoever must not miss a write that was answered before
waits at the `barrier`, one round trip when the copy is up to date.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections.abc import Callable, Sequence
from itertools import count
from typing import Generic, TypeVar

from penstock.broker.bucket import Bucket
from penstock.broker.entry import Entry, check_pattern, entry_of
from penstock.broker.errors import LinkClosed, LinkError
from penstock.broker.follower import Follower, Start
from penstock.broker.link import Link
from penstock.broker.puller import Message
from penstock.broker.streams import ApiError, JetStream
from penstock.core.errors import PenstockError

__all__ = ["Mirror", "MirrorBehind"]

T = TypeVar("T")
log = logging.getLogger(__name__)

_BATCH = 1000
_LONG = 30.0
_RETRY = 0.5


class MirrorBehind(PenstockError):
    """The copy did not reach in time what the stream held when it was asked."""

    code = "mirror.behind"
    remedy = "ask again; if it stays so, the process is overloaded or cut off from NATS."


class Mirror(Generic[T]):
    """Feeds every record, in order and once, to ``apply``; made by `of_bucket` or `of_stream`.

    ``apply`` is called from the event loop and must neither wait nor raise: a mirror whose
    ``apply`` raised has `failed` and every barrier says so. ``reset`` is called when the stream
    turned out to be another one than before: drop everything, it all comes again. Of a key that
    changed several times while we were away, only the last state may come. A value that vanishes
    by age comes as a delete marker only where the bucket leaves markers (``marker_ttl``).
    """

    def __init__(
        self,
        js: JetStream,
        stream: str,
        filters: Sequence[str],
        *,
        follower: Follower,
        convert: Callable[[Message], T],
        apply: Callable[[T], None],
        reset: Callable[[], None] | None = None,
    ) -> None:
        self._js = js
        self._stream = stream
        self._filters = list(filters)
        self._follower = follower
        self._convert = convert
        self._apply = apply
        self._reset = reset
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._ticket = count()
        self.applied_seq = 0
        self.applied = 0
        self.failed: BaseException | None = None
        self.ready = asyncio.Event()

    @classmethod
    def of_bucket(
        cls,
        bucket: Bucket,
        apply: Callable[[Entry], None],
        *,
        pattern: str = ">",
        reset: Callable[[], None] | None = None,
    ) -> Mirror[Entry]:
        """A copy of the keys that meet ``pattern``, delete markers included."""
        cut = len(bucket.prefix)
        return Mirror[Entry](
            JetStream(bucket.link),
            bucket.stream,
            [bucket.prefix + check_pattern(pattern)],
            follower=bucket.follower(pattern),
            convert=lambda message: entry_of(message, cut),
            apply=apply,
            reset=reset,
        )

    @classmethod
    def of_stream(
        cls,
        link: Link,
        stream: str,
        apply: Callable[[Message], None],
        *,
        filters: Sequence[str] = (">",),
        start: Start = "all",
        reset: Callable[[], None] | None = None,
    ) -> Mirror[Message]:
        """A copy of the messages whose subjects meet one of ``filters``."""
        follower = Follower(link, stream, filters=filters, start=start)
        return Mirror[Message](
            JetStream(link),
            stream,
            filters,
            follower=follower,
            convert=lambda message: message,
            apply=apply,
            reset=reset,
        )

    async def start(self) -> None:
        """Begin following; `ready` is set when what the stream held now has been applied."""
        if self._task is None:
            await self._follower.open()
            self._note_progress()
            self._task = asyncio.create_task(self._run(), name=f"mirror:{self._stream}")

    async def stop(self) -> None:
        """End following; safe to repeat. Whoever waits at the barrier hears of it."""
        task, self._task = self._task, None
        if task is None:
            return
        await self._follower.stop()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        self._give_up(LinkClosed("the mirror was stopped"))

    async def __aenter__(self) -> Mirror[T]:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def barrier(self, timeout: float = 1.0) -> None:
        """Return when all is applied that was stored before the call.

        Raises `MirrorBehind` when that, or asking, takes longer than ``timeout`` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                while not await self._reached(await self._last_seq(), timeout / 3):
                    pass  # what we waited for may be deleted by now: ask again
        except (TimeoutError, LinkError, ApiError) as error:
            raise MirrorBehind(
                f"the copy of {self._stream} stands at {self.applied_seq}, "
                f"behind the stream, after {timeout:g} s"
            ) from (self.failed or error)

    # -- inside --------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while True:
                await self._step()
        except Exception as error:
            self.failed = error
            if not isinstance(error, LinkClosed):
                log.exception("the mirror of %s failed and is no longer fed", self._stream)
            self._give_up(LinkClosed(f"the mirror failed: {error}"))

    async def _step(self) -> None:
        generation = self._follower.generation
        try:
            batch = await self._follower.fetch(_BATCH, _LONG)
        except LinkClosed:
            raise
        except (LinkError, ApiError):  # the stream is gone: somebody may make it again
            await asyncio.sleep(_RETRY)
            return
        if self._follower.generation != generation:
            self._start_over()
        convert, apply = self._convert, self._apply
        for message in batch:
            apply(convert(message))
        self.applied += len(batch)
        self._note_progress()
        await asyncio.sleep(0)  # a full buffer must not keep others from running

    def _start_over(self) -> None:
        self.applied_seq = 0
        if self._reset is not None:
            self._reset()

    def _note_progress(self) -> None:
        follower = self._follower
        self.applied_seq = follower.position
        while self._waiting and self._waiting[0][0] <= self.applied_seq:
            future = heapq.heappop(self._waiting)[2]
            if not future.done():
                future.set_result(None)
        if follower.caught_up:
            self.ready.set()

    async def _last_seq(self) -> int:
        """The sequence of the last stored message that we follow, 0 if there is none."""
        last = 0
        for subject in self._filters:
            message = await self._js.get_message(self._stream, last_by_subj=subject)
            last = max(last, message.seq if message is not None else 0)
        return last

    async def _reached(self, seq: int, within: float) -> bool:
        if self.failed is not None or self._task is None:
            raise LinkClosed("the mirror is not running")
        if self.applied_seq >= seq:
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (seq, next(self._ticket), future))
        try:
            done, _ = await asyncio.wait([future], timeout=within)
            for settled in done:
                settled.result()
            return bool(done)
        finally:
            future.cancel()

    def _give_up(self, error: LinkError) -> None:
        waiting, self._waiting = self._waiting, []
        for _, _, future in waiting:
            if not future.done():
                future.set_exception(error)
