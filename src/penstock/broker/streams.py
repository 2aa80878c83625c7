"""Streams and consumers: the JetStream management API, as much of it as we use.

`JetStream` asks and answers in JSON over a `Link`. What is ensured is created when absent and
otherwise left as its owner made it: two versions of a program, or a client in another language,
may share one stream. Lengths of time are ``timedelta`` here and nanoseconds on the wire; a
field left at ``None`` is not sent, so the server's default holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.broker.config import (
    ConsumerConfig,
    ConsumerInfo,
    StoredMessage,
    StreamConfig,
    StreamInfo,
)
from penstock.core.errors import BadInput, PenstockError

if TYPE_CHECKING:
    from penstock.broker.link import Link

__all__ = [
    "ApiError",
    "ConsumerConfig",
    "ConsumerInfo",
    "JetStream",
    "StoredMessage",
    "StreamConfig",
    "StreamInfo",
    "check_name",
]

NO_MESSAGE = 10037
CONSUMER_MISSING = 10014
CONSUMER_EXISTS = (10013, 10148)
STREAM_EXISTS = 10058
STREAM_MISSING = 10059
STREAM_NOT_STORED = 10049  # also seen for some milliseconds after an account's last stream went
_UNFIT_FOR_NAMES = frozenset(" \t\r\n.*>/\\")


class ApiError(PenstockError):
    """The server refused a management request; ``err_code`` is its own number for the reason."""

    code = "nats.api"

    def __init__(self, status: int, err_code: int, description: str, request: str) -> None:
        super().__init__(
            f"JetStream refused {request}: {description} ({err_code})",
            remedy="see the stream or consumer configuration that the message names.",
        )
        self.status = status
        self.err_code = err_code
        self.description = description

    @property
    def missing(self) -> bool:
        """Is what was asked for simply not there?"""
        return self.status == 404


class JetStream:
    """The management side of JetStream at the other end of ``link``."""

    def __init__(self, link: Link, domain: str | None = None) -> None:
        self._link = link
        self._prefix = f"$JS.{domain}.API." if domain else "$JS.API."

    async def api(self, subject: str, body: Any = None) -> dict[str, Any]:
        """Ask ``$JS.API.<subject>``; raises `ApiError` when the answer is an error."""
        payload = b"" if body is None else msgspec.json.encode(body)
        reply = await self._link.request((self._prefix + subject).encode(), payload)
        answer: dict[str, Any] = msgspec.json.decode(reply.payload)
        error = answer.get("error")
        if error is not None:
            raise ApiError(
                error.get("code", 0),
                error.get("err_code", 0),
                error.get("description", ""),
                subject,
            )
        return answer

    # -- streams -------------------------------------------------------------------------

    async def ensure_stream(self, config: StreamConfig, *, update: bool = False) -> StreamInfo:
        """The stream of that name, created from ``config`` when absent.

        An existing one is answered as it is; with ``update`` the fields set in ``config`` are
        changed on it and all others kept. Safe to call from many processes at once.
        """
        check_name(config.name, "stream")
        try:
            answer = await self.api(f"STREAM.INFO.{config.name}")
        except ApiError as error:
            if error.err_code != STREAM_MISSING:
                raise
            return await self._create_stream(config)
        if update:
            wanted = _merged(answer["config"], config.to_wire())
            if wanted != answer["config"]:
                answer = await self.api(f"STREAM.UPDATE.{config.name}", wanted)
        return StreamInfo.from_wire(answer)

    async def stream_info(self, name: str) -> StreamInfo:
        return StreamInfo.from_wire(await self.api(f"STREAM.INFO.{name}"))

    async def stream_names(self, subject: str | None = None) -> list[str]:
        """All streams, or those whose subjects meet ``subject``."""
        extra = {"subject": subject} if subject else {}
        return await self._paged_names("STREAM.NAMES", "streams", extra)

    async def delete_stream(self, name: str) -> bool:
        """Delete a stream with all it holds; False when there was none."""
        return await self._delete(f"STREAM.DELETE.{name}")

    async def purge(
        self,
        name: str,
        *,
        subject: str | None = None,
        up_to_seq: int | None = None,
        keep: int | None = None,
    ) -> int:
        """Remove messages, all or of one subject filter; answers how many."""
        body = {"filter": subject, "seq": up_to_seq, "keep": keep}
        chosen = {key: value for key, value in body.items() if value is not None}
        return int((await self.api(f"STREAM.PURGE.{name}", chosen or None))["purged"])

    async def subject_counts(self, name: str, subject: str = ">") -> dict[str, int]:
        """How many messages each subject holds, for the subjects that meet the filter."""
        counts: dict[str, int] = {}
        while True:
            body = {"subjects_filter": subject, "offset": len(counts)}
            answer = await self.api(f"STREAM.INFO.{name}", body)
            page = answer["state"].get("subjects") or {}
            counts.update(page)
            if not page or len(counts) >= answer.get("total", 0):
                return counts

    # -- consumers -----------------------------------------------------------------------

    async def ensure_consumer(
        self, stream: str, config: ConsumerConfig, *, update: bool = False
    ) -> ConsumerInfo:
        """The consumer of that name, created when absent; ``update`` as for streams."""
        name = config.durable_name or config.name
        if name is None:
            raise BadInput("a consumer needs a name or a durable_name")
        check_name(name, "consumer")
        try:
            answer = await self.api(f"CONSUMER.INFO.{stream}.{name}")
        except ApiError as error:
            if error.err_code != CONSUMER_MISSING:
                raise
            return await self.create_consumer(stream, config)
        if update:
            wanted = _merged(answer["config"], config.to_wire())
            if wanted != answer["config"]:
                answer = await self._make_consumer(stream, name, wanted, "update")
        return ConsumerInfo.from_wire(answer)

    async def create_consumer(self, stream: str, config: ConsumerConfig) -> ConsumerInfo:
        """Create without asking first; one that another process made meanwhile is answered."""
        name = config.durable_name or config.name or ""
        try:
            answer = await self._make_consumer(stream, name, config.to_wire(), "create")
        except ApiError as error:
            if error.err_code not in CONSUMER_EXISTS:
                raise
            answer = await self.api(f"CONSUMER.INFO.{stream}.{name}")
        return ConsumerInfo.from_wire(answer)

    async def consumer_info(self, stream: str, name: str) -> ConsumerInfo:
        return ConsumerInfo.from_wire(await self.api(f"CONSUMER.INFO.{stream}.{name}"))

    async def consumer_names(self, stream: str) -> list[str]:
        return await self._paged_names(f"CONSUMER.NAMES.{stream}", "consumers", {})

    async def delete_consumer(self, stream: str, name: str) -> bool:
        """Delete a consumer; False when there was none."""
        return await self._delete(f"CONSUMER.DELETE.{stream}.{name}")

    # -- messages ------------------------------------------------------------------------

    async def get_message(
        self,
        stream: str,
        seq: int | None = None,
        *,
        last_by_subj: str | None = None,
        next_by_subj: str | None = None,
    ) -> StoredMessage | None:
        """One stored message as the stream's leader has it, or None.

        By sequence, the last of a subject, or the first of a subject from ``seq`` on.
        """
        body = {"seq": seq, "last_by_subj": last_by_subj, "next_by_subj": next_by_subj}
        chosen = {key: value for key, value in body.items() if value is not None}
        try:
            answer = await self.api(f"STREAM.MSG.GET.{stream}", chosen)
        except ApiError as error:
            if error.err_code == NO_MESSAGE:
                return None
            raise
        return StoredMessage.from_wire(answer["message"])

    async def delete_message(self, stream: str, seq: int, *, erase: bool = False) -> bool:
        """Remove one message; False when it is not there. ``erase`` overwrites it on disk."""
        body = {"seq": seq, "no_erase": not erase}
        try:
            await self.api(f"STREAM.MSG.DELETE.{stream}", body)
        except ApiError as error:
            if error.err_code in (NO_MESSAGE, 10043, 10057):
                return False
            raise
        return True

    # -- inside --------------------------------------------------------------------------

    async def _create_stream(self, config: StreamConfig, tries: int = 40) -> StreamInfo:
        while True:
            try:
                answer = await self.api(f"STREAM.CREATE.{config.name}", config.to_wire())
                return StreamInfo.from_wire(answer)
            except ApiError as error:
                if error.err_code == STREAM_EXISTS:
                    return await self.stream_info(config.name)
                tries -= 1
                if error.err_code != STREAM_NOT_STORED or not tries:
                    raise
            await asyncio.sleep(0.025)  # the server is still removing the account's folder

    async def _make_consumer(
        self, stream: str, name: str, config: Mapping[str, Any], action: str
    ) -> dict[str, Any]:
        body = {"stream_name": stream, "config": config, "action": action}
        return await self.api(f"CONSUMER.CREATE.{stream}.{name}", body)

    async def _delete(self, subject: str) -> bool:
        try:
            await self.api(subject)
        except ApiError as error:
            if error.missing:
                return False
            raise
        return True

    async def _paged_names(self, subject: str, member: str, extra: dict[str, Any]) -> list[str]:
        names: list[str] = []
        while True:
            answer = await self.api(subject, {"offset": len(names), **extra})
            page = answer.get(member) or []
            names.extend(page)
            if not page or len(names) >= answer.get("total", 0):
                return names


def check_name(name: str, kind: str) -> str:
    """``name`` if a stream or consumer may have it; raises `BadInput`."""
    if (
        not name
        or len(name) > 255
        or not _UNFIT_FOR_NAMES.isdisjoint(name)
        or not name.isprintable()
    ):
        raise BadInput(
            f"{name!r} cannot name a {kind}",
            remedy="use letters, digits, - and _; no dots, spaces, wildcards or slashes.",
        )
    return name


def _merged(current: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    return {**current, **wanted}
