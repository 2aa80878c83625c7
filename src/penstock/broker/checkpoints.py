"""Checkpoints for protocols whose wire has no place for them.

One bucket for all, key ``{protocol}.{name}.{run id}``; a checkpoint goes when its run
succeeds and expires by itself where a run never comes back. The bucket is made when the
first checkpoint is saved, so who never saves one never sees it.

A checkpoint carries the fence of the holder that saved it, a number that grows with every
hand-out of the work; a holder with a lower one was overtaken and is refused.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from penstock.broker.bucket import Bucket, BucketConfig, Outcome
from penstock.broker.publisher import Refused, Stored, Unknown
from penstock.core import codec
from penstock.core.context import LeaseLost
from penstock.core.errors import PenstockError
from penstock.core.invocation import Checkpoint, ProtocolName

if TYPE_CHECKING:
    from penstock.broker.link import Link

__all__ = ["CheckpointNotKept", "Checkpoints"]

_KEPT_FOR = timedelta(days=30)
_TRIES = 4  # of a save that races with another


class _Kept(Checkpoint, frozen=True, omit_defaults=True):
    fence: int = 0


_decoder = msgspec.json.Decoder(_Kept)


class CheckpointNotKept(PenstockError):
    """A checkpoint could not be written; the handler is told rather than misled."""

    code = "checkpoint"
    remedy = "see whether the bucket is full, or the checkpoint larger than a message may be"


class Checkpoints:
    """The side store of one protocol."""

    def __init__(
        self, link: Link, protocol: ProtocolName, bucket: str, *, replicas: int = 1
    ) -> None:
        self._link = link
        self._protocol = protocol
        self._config = BucketConfig(history=1, ttl=_KEPT_FOR, replicas=replicas)
        self._name = bucket
        self._bucket: Bucket | None = None

    async def load(self, name: str, work_id: str) -> Checkpoint | None:
        """What was saved for this run, if anything."""
        bucket = await self._open(make=False)
        if bucket is None:
            return None
        entry = await bucket.get(self._key(name, work_id), leader=True)
        if entry is None or not entry.value:
            return None
        kept = _decoder.decode(entry.value)
        return Checkpoint(kept.value, kept.iteration)

    async def save(
        self, name: str, work_id: str, checkpoint: Checkpoint, *, fence: int = 0
    ) -> None:
        """Keep ``checkpoint``; it is durable on return. ``fence`` 0 is let through unseen.

        Raises `CheckpointNotKept`, and `LeaseLost` when a later holder has saved one.
        """
        bucket = await self._open(make=True)
        assert bucket is not None  # made just now
        value = codec.encode(_Kept(checkpoint.value, checkpoint.iteration, fence))
        answer = await self._write(bucket, self._key(name, work_id), value, fence)
        if not isinstance(answer, Stored):
            raise CheckpointNotKept(f"the checkpoint of {name} {work_id} was not kept: {answer}")

    async def forget(self, name: str, work_id: str) -> None:
        """The run is over. Best effort: what stays behind expires."""
        bucket = await self._open(make=False)
        if bucket is not None:
            await bucket.purge(self._key(name, work_id))

    async def _write(self, bucket: Bucket, key: str, value: bytes, fence: int) -> Outcome:
        answer: Outcome = Unknown("not tried")
        for _ in range(_TRIES):
            entry = await bucket.get(key, leader=True)
            if entry is not None and entry.value and 0 < fence < _decoder.decode(entry.value).fence:
                raise LeaseLost(f"another worker has saved a checkpoint of {key} since")
            revision = 0 if entry is None else entry.revision
            answer = await bucket.update(key, value, revision)
            if isinstance(answer, Unknown):
                answer = await bucket.settle_unknown(key, value, revision=revision, tries=2)
            if not (isinstance(answer, Refused) and answer.is_conflict):
                break
        return answer

    def _key(self, name: str, work_id: str) -> str:
        return f"{self._protocol}.{name}.{work_id}"

    async def _open(self, *, make: bool) -> Bucket | None:
        if self._bucket is None and make:
            self._bucket = await Bucket.open(self._link, self._name, create=self._config)
        elif self._bucket is None:  # every redelivered job looks, and mostly nobody saves any
            self._bucket = await Bucket.find(self._link, self._name)
        return self._bucket
