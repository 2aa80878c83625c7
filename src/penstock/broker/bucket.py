"""Buckets: keyed values with compare-and-set, on the wire that NATS key-value clients share.

What becomes of a write is a value, not an exception: `Stored` with the new revision, `Refused`
when the expected revision was not the last one, or `Unknown` when the answer was lost. An
unknown write is **never repeated blindly**: it may have taken effect, and repeating it would
undo what somebody else wrote since. `settle_unknown` reads back and decides; for it to tell
our write from another's, every value should hold something of its own (a write id).

Reads that decide something come from the stream's leader; others may be served by a
replica that lags a little, where the bucket allows it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.broker.config import StoredMessage, StreamConfig, StreamInfo
from penstock.broker.entry import (
    Entry,
    Operation,
    check_key,
    check_pattern,
    operation_of,
)
from penstock.broker.errors import LinkError
from penstock.broker.follower import Follower, Start
from penstock.broker.frames import parse_headers, status_of
from penstock.broker.publisher import Publisher, Refused, Stored, Unknown, Written
from penstock.broker.streams import NO_MESSAGE, STREAM_MISSING, ApiError, JetStream, check_name
from penstock.broker.watch import Watch
from penstock.core.errors import ConfigError, UnknownName

if TYPE_CHECKING:
    from penstock.broker.link import Link, Reply

__all__ = [
    "WRONG_REVISION",
    "Bucket",
    "BucketConfig",
    "BucketStatus",
    "Entry",
    "Operation",
    "Outcome",
    "Watch",
    "check_key",
]

Outcome = Written
WRONG_REVISION = 10071  # ``Refused.err_code`` of a lost compare-and-set

_DEL = b"KV-Operation: DEL\r\n"
_PURGE = b"KV-Operation: PURGE\r\nNats-Rollup: sub\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketConfig:
    """How a bucket is made when there is none. ``ttl`` is the age at which values vanish;
    ``marker_ttl`` has the server leave a delete marker for that long when they do."""

    history: int = 1
    ttl: timedelta | None = None
    replicas: int = 1
    storage: Literal["file", "memory"] = "file"
    allow_msg_ttl: bool = False
    marker_ttl: timedelta | None = None
    max_bytes: int | None = None
    max_value_bytes: int | None = None
    allow_direct: bool = True
    description: str | None = None


@dataclass(frozen=True, slots=True)
class BucketStatus:
    """What a bucket holds and how it is kept. ``records`` counts history and delete markers."""

    name: str
    records: int
    payload_bytes: int
    last_revision: int
    history: int
    ttl: timedelta | None
    storage: str
    replicas: int
    created_at: datetime


class Bucket:
    """One key-value bucket, shared with clients in any language. Make it with `open`."""

    def __init__(self, link: Link, name: str, info: StreamInfo) -> None:
        config = info.config
        self.link = link
        self.name = name
        self.stream = f"KV_{name}"
        self.allows_ttl = bool(config.allow_msg_ttl)
        self.max_age = config.max_age or None
        limit = config.max_msg_size
        self.max_value_bytes = limit if limit is not None and limit > 0 else None
        self.prefix = f"$KV.{name}."
        self._prefix = self.prefix.encode()
        self._js = JetStream(link)
        self._publisher = Publisher(link)
        self._direct = bool(config.allow_direct)
        self._direct_get = b"$JS.API.DIRECT.GET.%b.%b" % (self.stream.encode(), self._prefix)
        self._leader_get = f"$JS.API.STREAM.MSG.GET.{self.stream}".encode()

    @classmethod
    async def open(cls, link: Link, name: str, create: BucketConfig | None = None) -> Bucket:
        """The bucket of that name, as it is; made from ``create`` when there is none.

        Raises `UnknownName` when it is missing and may not be made.
        """
        bucket = await cls.find(link, name)
        if bucket is not None:
            return bucket
        js = JetStream(link)
        if create is None:
            raise UnknownName("bucket", name, await _bucket_names(js))
        return cls(link, name, await js.ensure_stream(_stream_config(name, create)))

    @classmethod
    async def find(cls, link: Link, name: str) -> Bucket | None:
        """The bucket of that name, if there is one: a single look, for where none is usual."""
        check_name(name, "bucket")
        try:
            info = await JetStream(link).stream_info(f"KV_{name}")
        except ApiError as error:
            if error.err_code != STREAM_MISSING:
                raise
            return None
        return cls(link, name, info)

    @property
    def write_timeout(self) -> float:
        """Seconds after which a write without an answer is `Unknown`."""
        return self._publisher.timeout

    @write_timeout.setter
    def write_timeout(self, seconds: float) -> None:
        self._publisher.timeout = seconds

    # -- reading -------------------------------------------------------------------------

    async def get(self, key: str, *, leader: bool = False) -> Entry | None:
        """The last record of ``key``, None if there is none; a delete marker is an `Entry` too.

        With ``leader`` it is the truth of this moment, for reads that decide.
        """
        return self._entry(await self.send_get(key, leader=leader), leader)

    async def get_many(self, keys: Iterable[str], *, leader: bool = False) -> dict[str, Entry]:
        """The last records of those keys that have one, all asked for at once."""
        asked: list[asyncio.Future[Reply]] = []
        for key in keys:
            await self.link.room()
            asked.append(self.send_get(key, leader=leader))
        found = [self._entry(await reply, leader) for reply in asked]
        return {entry.key: entry for entry in found if entry is not None}

    def send_get(self, key: str, *, leader: bool = False) -> asyncio.Future[Reply]:
        """Ask for ``key`` without waiting; for pipelining, see `get_many`."""
        check_key(key)
        if self._direct and not leader:
            return self.link.request(self._direct_get + key.encode())
        body = b'{"last_by_subj":"%b%b"}' % (self._prefix, key.encode())
        return self.link.request(self._leader_get, body)

    async def watch(
        self,
        pattern: str = ">",
        *,
        include_history: bool = False,
        ignore_deletes: bool = False,
        updates_only: bool = False,
    ) -> Watch:
        """Follow the keys that meet ``pattern``: first their values now, then each change."""
        start: Start = "all" if include_history else "last_per_subject"
        follower = self.follower(pattern, start="new" if updates_only else start)
        await follower.open()
        return Watch(follower, len(self._prefix), ignore_deletes=ignore_deletes)

    async def keys(self, pattern: str = ">") -> list[str]:
        """The keys that hold a value now. Reads every key's headers: not for a hot path."""
        follower = self.follower(pattern, headers_only=True)
        await follower.open()
        watch = Watch(follower, len(self._prefix), ignore_deletes=True)
        async with watch:
            return list(dict.fromkeys(entry.key for entry in await watch.initial()))

    def follower(
        self, pattern: str = ">", *, start: Start = "last_per_subject", headers_only: bool = False
    ) -> Follower:
        """An unopened reader of the bucket's records, for `Watch` and `Mirror`."""
        subject = self.prefix + check_pattern(pattern)
        return Follower(
            self.link, self.stream, filters=[subject], start=start, headers_only=headers_only
        )

    async def status(self) -> BucketStatus:
        info = await self._js.stream_info(self.stream)
        config, state = info.config, info.state
        return BucketStatus(
            name=self.name,
            records=state.messages,
            payload_bytes=state.bytes,
            last_revision=state.last_seq,
            history=config.max_msgs_per_subject or 1,
            ttl=config.max_age or None,
            storage=config.storage or "file",
            replicas=config.num_replicas or 1,
            created_at=info.created_at,
        )

    # -- writing -------------------------------------------------------------------------

    def send_put(
        self,
        key: str,
        value: bytes,
        *,
        revision: int | None = None,
        ttl: timedelta | None = None,
    ) -> asyncio.Future[Outcome]:
        """Write without waiting: the future's result is the outcome, it never fails.

        ``revision`` is the last one expected, 0 for a key without records, None for any.
        Raises at once, with nothing sent, for a bad key, a value over the server's limit, and
        `LinkBusy`: callers that send many wait for ``link.room()`` in between.
        """
        subject = self._prefix + check_key(key).encode()
        headers = None if revision is None else _expecting(revision)
        if ttl is not None:
            headers = (headers or b"") + self._living(ttl)
        return self._publisher.send(subject, value, headers=headers)

    async def put(self, key: str, value: bytes, *, ttl: timedelta | None = None) -> Outcome:
        """Set ``key`` whatever it holds now."""
        await self.link.room()
        return await self.send_put(key, value, ttl=ttl)

    async def update(
        self, key: str, value: bytes, revision: int, *, ttl: timedelta | None = None
    ) -> Outcome:
        """Set ``key`` if ``revision`` is still its last one."""
        await self.link.room()
        return await self.send_put(key, value, revision=revision, ttl=ttl)

    async def create(self, key: str, value: bytes, *, ttl: timedelta | None = None) -> Outcome:
        """Set ``key`` if it holds no value: never written, deleted, or expired."""
        outcome = await self.update(key, value, 0, ttl=ttl)
        if not isinstance(outcome, Refused) or outcome.err_code != WRONG_REVISION:
            return outcome
        try:
            current = await self.get(key, leader=True)
        except LinkError:
            return outcome
        if current is not None and not current.deleted:
            return outcome
        return await self.update(key, value, current.revision if current else 0, ttl=ttl)

    async def delete(
        self, key: str, revision: int | None = None, *, marker_ttl: timedelta | None = None
    ) -> Outcome:
        """Leave a delete marker, if ``revision`` is given only over that one.

        The marker itself vanishes after ``marker_ttl``.
        """
        ttl = b"" if marker_ttl is None else self._living(marker_ttl)
        return await self._mark(key, _DEL + _expecting(revision) + ttl)

    async def purge(
        self, key: str, revision: int | None = None, *, marker_ttl: timedelta | None = None
    ) -> Outcome:
        """Remove all history of a key and leave a marker, which vanishes after ``marker_ttl``."""
        ttl = b"" if marker_ttl is None else self._living(marker_ttl)
        return await self._mark(key, _PURGE + _expecting(revision) + ttl)

    async def settle_unknown(
        self,
        key: str,
        value: bytes,
        *,
        revision: int,
        ttl: timedelta | None = None,
        tries: int = 5,
    ) -> Outcome:
        """Find out what became of a compare-and-set whose answer was lost, and finish it.

        - The key holds our bytes at a later revision: it was `Stored`.
        - The key is still at ``revision``: it is written again, under the same condition.
        - Somebody else's value or delete marker is there: `Refused`. Ours may have stood before
          it; only a trace of it inside the record can tell.
        - No server answers: still `Unknown`.
        """
        outcome: Outcome = Unknown("no server answered the read back")
        for _ in range(tries):
            try:
                current = await self.get(key, leader=True)
            except LinkError as error:
                outcome = Unknown(error.message)
                await asyncio.sleep(0.05)
                continue
            at = current.revision if current is not None else 0
            if current is not None and at > revision and _is_put_of(current, value):
                return Stored(seq=at, duplicate=False, stream=self.stream)
            if at != revision:
                return Refused(400, WRONG_REVISION, f"revision is {at}, not {revision}")
            outcome = await self.send_put(key, value, revision=revision, ttl=ttl)
            if isinstance(outcome, Stored):
                return outcome
        return outcome

    # -- inside --------------------------------------------------------------------------

    async def _mark(self, key: str, headers: bytes) -> Outcome:
        await self.link.room()
        subject = self._prefix + check_key(key).encode()
        return await self._publisher.send(subject, b"", headers=headers)

    def _living(self, ttl: timedelta) -> bytes:
        if not self.allows_ttl:
            raise ConfigError(
                f"bucket {self.name!r} does not allow a time to live per key",
                remedy="make it with BucketConfig(allow_msg_ttl=True).",
            )
        return b"Nats-TTL: %ds\r\n" % max(1, math.ceil(ttl.total_seconds()))

    def _entry(self, reply: Reply, leader: bool) -> Entry | None:
        if self._direct and not leader:
            return self._from_direct(reply)
        answer = _answer_decoder.decode(reply.payload)
        if answer.error is not None:
            if answer.error.err_code == NO_MESSAGE:
                return None
            raise ApiError(
                answer.error.code, answer.error.err_code, answer.error.description, self.stream
            )
        assert answer.message is not None
        return self._from_stored(StoredMessage.from_wire(answer.message))

    def _from_stored(self, message: StoredMessage) -> Entry:
        return Entry(
            message.subject[len(self.prefix) :],
            message.payload,
            message.seq,
            operation_of(message.headers),
            _as_ns(message.stored_at),
        )

    def _from_direct(self, reply: Reply) -> Entry | None:
        status, text = status_of(reply.headers)
        if status == 404:
            return None
        if status:
            raise ApiError(status, 0, text, self.stream)
        headers = parse_headers(reply.headers)
        return Entry(
            headers["Nats-Subject"][len(self.prefix) :],
            reply.payload,
            int(headers["Nats-Sequence"]),
            operation_of(reply.headers),
            _as_ns(datetime.fromisoformat(headers["Nats-Time-Stamp"])),
        )


class _Fault(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Answer(msgspec.Struct):
    message: dict[str, str | int] | None = None
    error: _Fault | None = None


_answer_decoder = msgspec.json.Decoder(_Answer)


def _stream_config(name: str, config: BucketConfig) -> StreamConfig:
    """The stream that clients in other languages would make for this bucket."""
    window = timedelta(minutes=2)
    return StreamConfig(
        name=f"KV_{name}",
        description=config.description,
        subjects=[f"$KV.{name}.>"],
        storage=config.storage,
        discard="new",
        max_msgs_per_subject=config.history,
        max_age=config.ttl,
        max_bytes=config.max_bytes,
        max_msg_size=config.max_value_bytes,
        num_replicas=config.replicas,
        duplicate_window=min(window, config.ttl) if config.ttl else window,
        allow_rollup_hdrs=True,
        deny_delete=True,
        allow_direct=config.allow_direct,
        allow_msg_ttl=True if config.allow_msg_ttl or config.marker_ttl else None,
        subject_delete_marker_ttl=config.marker_ttl,
    )


async def _bucket_names(js: JetStream) -> list[str]:
    names = await js.stream_names("$KV.>")
    return [name.removeprefix("KV_") for name in names if name.startswith("KV_")]


def _expecting(revision: int | None) -> bytes:
    if revision is None:
        return b""
    return b"Nats-Expected-Last-Subject-Sequence: %d\r\n" % revision


def _is_put_of(entry: Entry, value: bytes) -> bool:
    return not entry.deleted and entry.value == value


def _as_ns(instant: datetime) -> int:
    return int(instant.timestamp()) * 10**9 + instant.microsecond * 1000
