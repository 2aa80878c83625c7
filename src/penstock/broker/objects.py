"""Values too large for one message: NATS object stores, shared with clients in any language.

An object is a row of chunk messages under a name nobody else uses, and one description of
them (the *meta* record) under the object's own name. The chunks are stored first and the
description last, so an object is there whole or not at all; what it replaced is removed
after that. Everything read is checked against size and SHA-256.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.broker.config import StreamConfig
from penstock.broker.follower import Follower
from penstock.broker.publisher import Publisher, Refused, Stored, Unknown
from penstock.broker.streams import STREAM_MISSING, ApiError, JetStream, check_name
from penstock.core.errors import BadInput, PenstockError, UnknownName
from penstock.core.ids import short_token

if TYPE_CHECKING:
    from penstock.broker.link import Link

__all__ = ["ObjectDamaged", "ObjectInfo", "ObjectNotStored", "ObjectStore", "ObjectTooLarge"]

CHUNK_BYTES = 128 * 1024
_HEADROOM = 512  # of a server's max_payload, for the headers of a chunk
_WINDOW = 16  # chunks under way at once: 2 MiB
_REPEATS = 3
_ROLLUP = b"Nats-Rollup: sub\r\n"
_DIGEST = "SHA-256="


class ObjectNotStored(PenstockError):
    """The server did not take the whole object; what it took was removed again."""

    code = "object.not_stored"
    remedy = "try again; see the message for what the server said."


class ObjectDamaged(PenstockError):
    """What was read is not what was written."""

    code = "object.damaged"
    remedy = "write it again; look for whoever purges the store's stream."


class ObjectTooLarge(PenstockError):
    """An object is larger than the caller allows; nothing was read or written."""

    code = "object.too_large"
    remedy = "raise max_bytes, or keep the value elsewhere."


class ObjectInfo(msgspec.Struct, omit_defaults=True):
    """The description of an object, as all clients write it."""

    name: str
    bucket: str
    nuid: str
    size: int
    chunks: int
    digest: str = ""
    mtime: str = ""
    deleted: bool = False
    description: str | None = None
    options: dict[str, object] | None = None


class ObjectStore:
    """One object store bucket. Make it with `open`."""

    def __init__(self, link: Link, name: str) -> None:
        self.name = name
        self.stream = f"OBJ_{name}"
        self._link = link
        self._js = JetStream(link)
        self._publisher = Publisher(link)

    @classmethod
    async def open(
        cls,
        link: Link,
        name: str,
        *,
        create: bool = False,
        storage: Literal["file", "memory"] = "file",
        replicas: int = 1,
        ttl: timedelta | None = None,
    ) -> ObjectStore:
        """The store of that name; with ``create`` it is made when there is none.

        ``ttl`` is the age at which its objects vanish; a store that exists keeps its own.
        """
        check_name(name, "object store")
        store = cls(link, name)
        if create:
            await store._js.ensure_stream(_stream_config(name, storage, replicas, ttl))
            return store
        try:
            await store._js.stream_info(store.stream)
        except ApiError as error:
            if error.err_code != STREAM_MISSING:
                raise
            raise UnknownName("object store", name, []) from error
        return store

    async def put(self, name: str, value: bytes, *, max_bytes: int | None = None) -> ObjectInfo:
        """Store ``value`` whole under ``name``, instead of what was there.

        Raises `ObjectTooLarge` before anything is sent, `ObjectNotStored` when it failed later.
        """
        if not name:
            raise BadInput("an object needs a name")
        _check_size(name, len(value), max_bytes)
        before = await self.info(name)
        nuid = f"{short_token()}{short_token()}"[:22]
        chunk_bytes = min(CHUNK_BYTES, self._link.max_payload - _HEADROOM)
        info = ObjectInfo(
            name=name,
            bucket=self.name,
            nuid=nuid,
            size=len(value),
            chunks=-(-len(value) // chunk_bytes),
            digest=_digest(value),
            mtime=_now(),
            options={"max_chunk_size": chunk_bytes},
        )
        try:
            await self._put_chunks(nuid, _pieces(value, chunk_bytes))
            await self._put_info(info)
        except BaseException:
            await asyncio.shield(self._drop_chunks(nuid))
            raise
        if before is not None:
            await self._drop_chunks(before.nuid)
        return info

    async def info(self, name: str) -> ObjectInfo | None:
        """What is known of ``name``; None when there is no such object."""
        message = await self._js.get_message(self.stream, last_by_subj=self._meta(name))
        if message is None:
            return None
        info = msgspec.json.decode(message.payload, type=ObjectInfo)
        return None if info.deleted else info

    async def get(
        self, name: str, *, max_bytes: int | None = None, timeout: float = 30.0
    ) -> bytes | None:
        """The value of ``name``, checked; None when there is no such object.

        Raises `ObjectTooLarge` before reading more than ``max_bytes``, `ObjectDamaged` when
        chunks are missing or differ. An object that is replaced while it is read is read again.
        """
        info = await self.info(name)
        while info is not None:
            _check_size(name, info.size, max_bytes)
            value = await self._read(info, timeout)
            if len(value) == info.size and (not info.digest or _matches(value, info.digest)):
                return value
            again = await self.info(name)
            if again is not None and again.nuid == info.nuid:
                raise ObjectDamaged(
                    f"object {name!r} of store {self.name!r} has {len(value)} bytes that do not "
                    f"match its description ({info.size} bytes, {info.digest})"
                )
            info = again
        return None

    async def delete(self, name: str) -> bool:
        """Remove an object; False when there was none."""
        info = await self.info(name)
        if info is None:
            return False
        gone = ObjectInfo(name, self.name, info.nuid, 0, 0, mtime=_now(), deleted=True)
        await self._put_info(gone)
        await self._drop_chunks(info.nuid)
        return True

    # -- inside --------------------------------------------------------------------------

    async def _put_chunks(self, nuid: str, pieces: Iterator[bytes]) -> None:
        subject = f"$O.{self.name}.C.{nuid}".encode()
        chunks = enumerate(pieces)
        seqs: list[int] = []
        while window := list(islice(chunks, _WINDOW)):
            sent = [await self._send(subject, piece, f"{nuid}-{n}") for n, piece in window]
            seqs.extend([await write.stored() for write in sent])
        if seqs != sorted(seqs):  # one was lost and came later than those behind it
            raise ObjectNotStored(f"store {self.name!r} took the chunks out of order")

    async def _put_info(self, info: ObjectInfo) -> None:
        subject = self._meta(info.name).encode()
        message_id = f"{info.nuid}-{info.mtime}"
        write = await self._send(subject, msgspec.json.encode(info), message_id, _ROLLUP)
        await write.stored()

    async def _send(self, subject: bytes, payload: bytes, msg_id: str, more: bytes = b"") -> _Write:
        headers = b"Nats-Msg-Id: %b\r\n%b" % (msg_id.encode(), more)
        await self._link.room()
        return _Write(self._publisher, subject, payload, headers)

    async def _read(self, info: ObjectInfo, timeout: float) -> bytes:
        if not info.size:
            return b""
        subject = f"$O.{self.name}.C.{info.nuid}"
        follower = await Follower(self._link, self.stream, filters=[subject]).open()
        parts: list[bytes] = []
        held = 0
        try:
            async with asyncio.timeout(timeout):
                while held < info.size and not follower.caught_up:
                    batch = await follower.fetch(_WINDOW, 1.0)
                    parts.extend(message.payload for message in batch)
                    held += sum(len(message.payload) for message in batch)
        except TimeoutError:
            raise ObjectDamaged(
                f"object {info.name!r} could not be read in {timeout:g} s"
            ) from None
        finally:
            await follower.stop()
        return b"".join(parts)

    async def _drop_chunks(self, nuid: str) -> None:
        await self._js.purge(self.stream, subject=f"$O.{self.name}.C.{nuid}")

    def _meta(self, name: str) -> str:
        return f"$O.{self.name}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


class _Write:
    """One message under way. Its id makes it safe to send again when the answer is lost."""

    def __init__(
        self, publisher: Publisher, subject: bytes, payload: bytes, headers: bytes
    ) -> None:
        self._send = partial(publisher.send, subject, payload, headers=headers)
        self._answer = self._send()

    async def stored(self) -> int:
        """The sequence it has; raises `ObjectNotStored`."""
        why = ""
        for repeat in range(_REPEATS):
            match await (self._send() if repeat else self._answer):
                case Stored(seq=seq):
                    return seq
                case Refused(description=why):
                    break
                case Unknown(reason=why):
                    continue
        raise ObjectNotStored(f"the object was not stored: {why}")


def _stream_config(
    name: str, storage: Literal["file", "memory"], replicas: int, ttl: timedelta | None
) -> StreamConfig:
    return StreamConfig(
        name=f"OBJ_{name}",
        subjects=[f"$O.{name}.C.>", f"$O.{name}.M.>"],
        storage=storage,
        num_replicas=replicas,
        max_age=ttl,
        discard="new",
        allow_rollup_hdrs=True,
        allow_direct=True,
    )


def _check_size(name: str, size: int, max_bytes: int | None) -> None:
    if max_bytes is not None and size > max_bytes:
        raise ObjectTooLarge(f"object {name!r} has {size} bytes, more than {max_bytes}")


def _pieces(value: bytes, size: int) -> Iterator[bytes]:
    return (value[at : at + size] for at in range(0, len(value), size))


def _digest(value: bytes) -> str:
    return _DIGEST + base64.urlsafe_b64encode(hashlib.sha256(value).digest()).decode()


def _matches(value: bytes, digest: str) -> bool:
    return _digest(value).rstrip("=") == digest.rstrip("=").replace("sha-256=", _DIGEST)


def _now() -> str:
    return datetime.now(UTC).isoformat()
