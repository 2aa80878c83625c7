"""Tables: small buckets kept in memory, each row changed by compare-and-set.

For what is read often and written seldom: queue settings, crons, workflows, workers, limits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from penstock.broker.bucket import Bucket
from penstock.broker.entry import Entry as Value
from penstock.broker.errors import LinkError
from penstock.broker.mirror import Mirror
from penstock.broker.publisher import Refused as WriteRefused
from penstock.broker.publisher import Stored, Unknown, Written
from penstock.broker.streams import ApiError
from penstock.protocols.ojs.books import SharedBarrier
from penstock.protocols.ojs.refusal import Refusal, Refused
from penstock.protocols.ojs.room import WIPED
from penstock.protocols.ojs.store import timed_out, unavailable

__all__ = ["Row", "Table"]

_log = logging.getLogger("penstock.ojs")
_TRIES: Final = 20

T = TypeVar("T", bound=Struct)


class Row(Struct, Generic[T], frozen=True):
    value: T
    revision: int


class Table(Generic[T]):
    """Rows of one kind under keys that begin with ``prefix``, and a copy of them all."""

    def __init__(self, bucket: Bucket, prefix: str, kind: type[T]) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}." if prefix else ""
        self._decoder: Any = msgspec.json.Decoder(kind)
        self._rows: dict[str, Row[T]] = {}
        self._gone: dict[str, int] = {}
        self._listeners: list[Callable[[str, T | None], None]] = []
        self._mirror = Mirror.of_bucket(bucket, self._apply, reset=self._clear)
        self._barrier = SharedBarrier(self._mirror)

    async def start(self) -> None:
        await self._mirror.start()
        async with asyncio.timeout(60):
            await self._mirror.ready.wait()

    async def stop(self) -> None:
        await self._mirror.stop()

    async def barrier(self, timeout: float = 2.0) -> None:
        await self._barrier.pass_through(timeout)

    def listen(self, listener: Callable[[str, T | None], None]) -> None:
        """``listener(name, row)`` after each change; ``None``: it is gone."""
        self._listeners.append(listener)

    # The copy -----------------------------------------------------------------------------

    def get(self, name: str) -> T | None:
        row = self._rows.get(name)
        return None if row is None else row.value

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._rows))

    def rows(self) -> Iterator[tuple[str, T]]:
        return ((name, self._rows[name].value) for name in self)

    # The bucket ---------------------------------------------------------------------------

    async def read(self, name: str) -> Row[T] | None:
        """The row as it is now."""
        try:
            value = await self._bucket.get(self._prefix + name, leader=True)
        except (LinkError, ApiError) as error:
            raise unavailable(error) from error
        if value is None or value.deleted:
            return None
        return Row(self._decoder.decode(value.value), value.revision)

    async def change(
        self, name: str, decide: Callable[[T | None], T | Refusal | None]
    ) -> T | Refusal | None:
        """Write what ``decide`` makes of the row, by compare-and-set; ``None`` or the same row
        writes nothing. The row that is there afterwards."""
        row = self._rows.get(name)
        certain = False
        for _ in range(_TRIES):
            if not certain and row is None:
                row, certain = await self.read(name), True
            now = None if row is None else row.value
            wanted = decide(now)
            if wanted is None or isinstance(wanted, Refusal) or wanted is now:
                if certain:
                    return now if wanted is None else wanted
                row, certain = await self.read(name), True
                continue
            if await self._write(name, wanted, 0 if row is None else row.revision):
                return wanted
            row, certain = await self.read(name), True
        return Refusal("conflict", f"{name} changed {_TRIES} times while this was tried")

    async def create(self, name: str, row: T) -> bool:
        """Write a row unless there is one."""
        return await self._write(name, row, 0)

    async def put(self, name: str, row: T) -> None:
        """Write a row whatever is there."""
        written = await self._bucket.put(self._prefix + name, msgspec.json.encode(row))
        if isinstance(written, Stored):
            self._note(name, row, written.seq)
        elif isinstance(written, Unknown):
            raise timed_out(written)
        else:
            raise Refused(Refusal("backend_unavailable", written.description, retry_after_s=1))

    async def remove(self, name: str) -> bool:
        """Purge a row; whether there was one."""
        row = await self.read(name)
        if row is None:
            return False
        written = await self._bucket.purge(self._prefix + name, row.revision)
        if isinstance(written, Stored):
            self._forget(name, written.seq)
        return isinstance(written, Stored)

    # Inside -------------------------------------------------------------------------------

    async def _write(self, name: str, row: T, revision: int) -> bool:
        data, key = msgspec.json.encode(row), self._prefix + name
        written: Written
        if revision == 0:
            written = await self._bucket.create(key, data)
        else:
            written = await self._bucket.update(key, data, revision)
        if isinstance(written, Unknown):
            written = await self._bucket.settle_unknown(key, data, revision=revision)
        if isinstance(written, Stored):
            self._note(name, row, written.seq)
            return True
        if isinstance(written, WriteRefused) and written.is_conflict:
            return False
        if isinstance(written, Unknown):
            raise timed_out(written)
        raise Refused(Refusal("backend_unavailable", written.description, retry_after_s=1))

    def _apply(self, value: Value) -> None:
        if value.key == WIPED:
            self._clear()
            return
        if not value.key.startswith(self._prefix):
            return
        name = value.key[len(self._prefix) :]
        if value.deleted:
            self._forget(name, value.revision)
            return
        try:
            row = self._decoder.decode(value.value)
        except msgspec.DecodeError as error:
            _log.error("%s in %s cannot be read: %s", value.key, self._bucket.name, error)
            return
        self._note(name, row, value.revision)

    def _note(self, name: str, row: T, revision: int) -> None:
        known = self._rows.get(name)
        if known is not None and known.revision >= revision:
            return
        if self._gone.get(name, 0) > revision:
            return
        self._rows[name] = Row(row, revision)
        self._tell(name, row)

    def _forget(self, name: str, revision: int) -> None:
        known = self._rows.get(name)
        if known is not None and known.revision > revision:
            return
        self._gone[name] = revision
        if len(self._gone) > 10_000:
            self._gone.clear()
        if self._rows.pop(name, None) is not None:
            self._tell(name, None)

    def _clear(self) -> None:
        gone, self._rows = self._rows, {}
        for name in gone:
            self._tell(name, None)

    def _tell(self, name: str, row: T | None) -> None:
        for listener in self._listeners:
            listener(name, row)
