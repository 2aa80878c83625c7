"""Checkpoints for protocols whose wire has no place for them.

One bucket for all, key ``{protocol}.{name}.{run id}``; a checkpoint goes when its run
succeeds and expires by itself where a run never comes back. The bucket is made when the
first checkpoint is saved, so who never saves one never sees it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from penstock.broker.bucket import Bucket, BucketConfig
from penstock.broker.publisher import Stored
from penstock.core import codec
from penstock.core.errors import PenstockError, UnknownName
from penstock.core.invocation import Checkpoint, ProtocolName

if TYPE_CHECKING:
    from penstock.broker.link import Link

__all__ = ["CheckpointNotKept", "Checkpoints"]

_KEPT_FOR = timedelta(days=30)
_decoder = msgspec.json.Decoder(Checkpoint)


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
        return _decoder.decode(entry.value)

    async def save(self, name: str, work_id: str, checkpoint: Checkpoint) -> None:
        """Keep ``checkpoint``; it is durable on return. Raises `CheckpointNotKept`."""
        bucket = await self._open(make=True)
        assert bucket is not None  # made just now
        answer = await bucket.put(self._key(name, work_id), codec.encode(checkpoint))
        if not isinstance(answer, Stored):
            raise CheckpointNotKept(f"the checkpoint of {name} {work_id} was not kept: {answer}")

    async def forget(self, name: str, work_id: str) -> None:
        """The run is over. Best effort: what stays behind expires."""
        bucket = await self._open(make=False)
        if bucket is not None:
            await bucket.purge(self._key(name, work_id))

    def _key(self, name: str, work_id: str) -> str:
        return f"{self._protocol}.{name}.{work_id}"

    async def _open(self, *, make: bool) -> Bucket | None:
        if self._bucket is None:
            try:
                self._bucket = await Bucket.open(
                    self._link, self._name, create=self._config if make else None
                )
            except UnknownName:
                return None
        return self._bucket
