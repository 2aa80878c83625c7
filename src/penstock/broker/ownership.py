"""Ownership: of many contenders one is the owner, for a term it must keep renewing.

The lease is one record of a bucket, written by compare-and-set only. No wall clocks are
compared: the owner counts its term on its own stopwatch, from *before* it sent the renewal; a
contender counts on its own, from *after* it saw the record change, and waits a little longer
than the term. So the old owner knows that it lost before a new one begins, unless a clock
runs wrong. For that case, and for a process that was frozen between looking and writing, there is
the `epoch`: it grows with every change of owner and never repeats, so what an owner writes can be
told from what its successor wrote. Correctness belongs to compare-and-set; ownership only
keeps contenders out of each other's way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from datetime import timedelta

import msgspec

from penstock.broker.bucket import Bucket, Entry, Outcome, check_key
from penstock.broker.errors import LinkClosed, LinkError
from penstock.broker.link import Subscription
from penstock.broker.publisher import Refused, Stored, Unknown
from penstock.broker.streams import ApiError
from penstock.core.errors import ConfigError, PenstockError
from penstock.core.ids import short_token

__all__ = ["NotOwner", "Ownership"]

log = logging.getLogger(__name__)

_MARGIN = (
    1.1  # a contender waits this much longer than the term: clocks run at slightly other speeds
)


class NotOwner(PenstockError):
    """Something that only the owner may do was tried without, or after, owning it."""

    code = "ownership.lost"
    remedy = "stop this work; the owner does it now."


class Claim(msgspec.Struct, omit_defaults=True):
    """The record: who owns it (nobody when empty), and how often that has changed."""

    holder: str
    epoch: int
    term_ms: int
    write_id: str = ""


class Ownership:
    """Contends for ``key`` from `start` to `stop`, and again after every loss.

    `acquired` and `lost` are events: at any time at least one of them is not set, and `epoch`
    tells whether a loss went unnoticed in between. `require` is the question to ask right before
    writing. The bucket must keep its values: with a time to live the epoch would start again.
    """

    def __init__(
        self,
        bucket: Bucket,
        key: str,
        holder: str,
        term: timedelta = timedelta(seconds=3),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if bucket.max_age is not None:
            raise ConfigError(
                f"bucket {bucket.name!r} forgets values after {bucket.max_age}",
                remedy="keep ownership in a bucket without a time to live.",
            )
        self._bucket = bucket
        self._key = check_key(key)
        self._holder = holder
        self._term = term.total_seconds()
        self._clock = clock
        self._claim: Claim | None = None
        self._revision = 0
        self._seen_at = clock()
        self._until = 0.0
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._hints = 0
        self._poked = asyncio.Event()
        self._subscription: Subscription | None = None
        self.epoch = 0
        self.acquired = asyncio.Event()
        self.lost = asyncio.Event()

    @property
    def owned(self) -> bool:
        """Is it ours at this moment, by our own clock?"""
        return self.acquired.is_set() and self._clock() < self._until

    @property
    def remaining(self) -> float:
        """Seconds for which it is certainly ours if no renewal succeeds any more."""
        return max(0.0, self._until - self._clock()) if self.acquired.is_set() else 0.0

    @property
    def owner(self) -> str | None:
        """Who owned it when we last looked; None if nobody."""
        return self._claim.holder or None if self._claim is not None else None

    def require(self) -> int:
        """The epoch to write under; raises `NotOwner` when it is not ours (any more)."""
        if not self.owned:
            raise NotOwner(f"{self._holder} does not own {self._key} (owner: {self.owner})")
        return self.epoch

    async def start(self) -> None:
        """Begin to contend, in the background."""
        if self._task is None:
            self._stopping = False
            subject = self._bucket.prefix + self._key
            self._subscription = await self._bucket.link.subscribe(subject, self._on_write)
            self._task = asyncio.create_task(self._contend(), name=f"ownership:{self._key}")

    async def stop(self) -> None:
        """Stop contending; what is ours is released, so that another may have it at once."""
        task, self._task = self._task, None
        if task is None:
            return
        self._stopping = True
        self._poked.set()
        await asyncio.wait([task], timeout=self._term)  # a write under way must be known first
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, LinkError):
            await task
        if self._subscription is not None:
            with contextlib.suppress(LinkError):
                await self._subscription.unsubscribe()
        if self.acquired.is_set():
            await self._release()

    async def __aenter__(self) -> Ownership:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # -- inside --------------------------------------------------------------------------

    async def _contend(self) -> None:
        while not self._stopping:
            self._poked.clear()
            try:
                await (self._renew() if self.acquired.is_set() else self._try_to_take())
            except LinkClosed:
                self._lose("the link was closed")
                return
            except (LinkError, ApiError) as error:
                log.debug("ownership of %s: %s", self._key, error.message)
            if not self._stopping:
                await self._pause()

    async def _release(self) -> None:
        claim = Claim("", self.epoch, self._term_ms(), short_token())
        self._lose("released", logging.INFO)
        with contextlib.suppress(LinkError, TimeoutError):
            async with asyncio.timeout(1.0):  # unheard, the term simply runs out
                await self._bucket.update(self._key, msgspec.json.encode(claim), self._revision)

    async def _pause(self) -> None:
        """Until the next look: a third of the term, or sooner when a release was heard."""
        left = self.remaining if self.acquired.is_set() else self._patience_left()
        wait = min(self._term / 3, max(left, 0.01))
        if self._hints:  # the hint may come before the stream has the record: look again soon
            self._hints -= 1
            wait = min(wait, 0.02)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._poked.wait()
        if self.acquired.is_set() and not self.owned:
            self._lose("not renewed in time")

    async def _try_to_take(self) -> None:
        entry = await self._bucket.get(self._key, leader=True)
        self._look_at(entry)
        if not self._free():
            return
        epoch = (self._claim.epoch if self._claim else 0) + 1
        claim = Claim(self._holder, epoch, self._term_ms(), short_token())
        sent_at = self._clock()
        outcome = await self._write(claim, self._revision, sent_at + self._term)
        if isinstance(outcome, Stored) and self._clock() < sent_at + self._term:
            self._claim, self._revision = claim, outcome.seq
            self._until, self.epoch = sent_at + self._term, epoch
            self.lost.clear()
            self.acquired.set()
            log.info("%s owns %s, epoch %d", self._holder, self._key, epoch)

    async def _renew(self) -> None:
        claim = Claim(self._holder, self.epoch, self._term_ms(), short_token())
        sent_at = self._clock()
        outcome = await self._write(claim, self._revision, self._until)
        if isinstance(outcome, Stored):
            self._claim, self._revision = claim, outcome.seq
            self._until = sent_at + self._term
        elif isinstance(outcome, Refused):
            self._lose(f"taken by another: {outcome.description}")

    async def _write(self, claim: Claim, revision: int, until: float) -> Outcome:
        """One compare-and-set; a lost answer is settled by reading, as long as it matters."""
        value = msgspec.json.encode(claim)
        outcome: Outcome = Unknown("no time left")
        try:
            async with asyncio.timeout(max(0.0, until - self._clock())):
                outcome = await self._bucket.update(self._key, value, revision)
                while isinstance(outcome, Unknown):
                    await asyncio.sleep(self._term / 50)
                    outcome = await self._bucket.settle_unknown(self._key, value, revision=revision)
        except TimeoutError:
            return Unknown("no answer within the term")
        return outcome

    def _look_at(self, entry: Entry | None) -> None:
        """Note the record; a new revision starts our stopwatch again."""
        revision = entry.revision if entry is not None else 0
        if revision != self._revision or self._claim is None:
            self._revision = revision
            self._seen_at = self._clock()
            known = self._claim.epoch if self._claim is not None else self.epoch
            # Of a record that somebody deleted the revision still grows, so the epoch does too.
            claim = _claim_of(entry) or Claim("", revision, 0)
            claim.epoch = max(claim.epoch, known)
            self._claim = claim

    def _free(self) -> bool:
        return self._claim is None or not self._claim.holder or self._patience_left() < 0

    def _patience_left(self) -> float:
        """How long the record must yet stand unchanged before we may take it."""
        claim = self._claim
        if claim is None or not claim.holder:
            return self._term
        patience = max(self._term, claim.term_ms / 1000) * _MARGIN
        return self._seen_at + patience - self._clock()

    def _lose(self, why: str, level: int = logging.WARNING) -> None:
        if self.acquired.is_set():
            log.log(level, "%s lost %s, epoch %d: %s", self._holder, self._key, self.epoch, why)
            self.acquired.clear()
            self.lost.set()
            self._seen_at = self._clock()

    def _on_write(
        self, _subject: bytes, _reply: bytes | None, _headers: bytes | None, payload: bytes
    ) -> None:
        """Somebody writes the record: look at once if it is released."""
        if not self.acquired.is_set() and b'"holder":""' in payload:
            self._hints = 3
            self._poked.set()

    def _term_ms(self) -> int:
        return int(self._term * 1000)


def _claim_of(entry: Entry | None) -> Claim | None:
    if entry is None or entry.deleted:
        return None
    try:
        return msgspec.json.decode(entry.value, type=Claim)
    except msgspec.DecodeError:
        return None  # nobody that keeps to this protocol wrote it: free for the taking
