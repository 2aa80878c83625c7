"""natq's sync tasks: requests that are always answered, on a plain core subscription.

The reply is the data alone; status and error travel as headers. Workers of ours share a
queue group, so that one request runs once however many of them there are.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from penstock.broker.errors import LinkError, PayloadTooLarge
from penstock.broker.frames import parse_headers
from penstock.core import codec
from penstock.core.delivery import RequestSink
from penstock.core.invocation import Invocation
from penstock.core.outcome import Outcome
from penstock.core.task import Task
from penstock.protocols.natq.rules import reply_to
from penstock.protocols.natq.wire import (
    INTERNAL_ERROR,
    INVALID_JSON,
    BadRunId,
    Input,
    Output,
    StatusCode,
    check_task_id,
    consumer_name,
    parse_input,
    reply_headers,
)

if TYPE_CHECKING:
    from penstock.broker.link import Link, Subscription
    from penstock.protocols.natq.room import Room
    from penstock.protocols.natq.schemas import ResultCheck

__all__ = ["RequestDoor"]

_log = logging.getLogger("penstock.natq")


class RequestDoor:
    """Where the requests of one sync task come in."""

    def __init__(
        self, room: Room, task: Task, log_ids: dict[str, str], check: ResultCheck | None = None
    ) -> None:
        self.check = check
        self.task = task.name
        self._task_id = check_task_id(task.name_on("natq"))
        self._link = room.link
        self._subject = room.options.sync_prefix + self._task_id
        self._compat = room.options.compat
        self._ids = {**log_ids, "taskId": self._task_id}
        self._subscription: Subscription | None = None
        self._receive: RequestSink | None = None

    @property
    def name(self) -> str:
        return f"natq:{self._subject}"

    async def start(self, receive: RequestSink) -> None:
        """Pass each request to ``receive``, on the loop, as it arrives; from now on they do."""
        self._receive = receive
        self._subscription = await self._link.subscribe(
            self._subject, self._on_message, queue=consumer_name(self._task_id)
        )
        await self._link.flush()  # until then the server would say that nobody is here

    async def drain(self) -> None:
        if self._subscription is not None:
            await self._subscription.drain()

    async def stop(self) -> None:
        if self._subscription is not None:
            await self._subscription.unsubscribe()

    def _on_message(
        self, _subject: bytes, reply: bytes | None, headers: bytes | None, payload: bytes
    ) -> None:
        if reply is None:  # nobody waits, so there is nothing to answer and nothing to run
            _log.debug("a request without reply subject was ignored", extra=self._ids)
            return
        try:
            given = parse_input(payload, compat=self._compat)
        except codec.JsonError:
            self._refuse(reply, StatusCode.NOT_ACCEPTABLE, INVALID_JSON)
        except BadRunId as error:
            self._refuse(reply, StatusCode.BAD_REQUEST, f"{error.message}; {error.remedy}")
        else:
            assert self._receive is not None  # start() set it before subscribing
            self._receive(_Asked(self, reply, given, payload, headers))

    def _refuse(self, reply: bytes, status: int, error: str) -> None:
        send(self._link, reply, Output("<unknown>", self._task_id, int(status), UNSET, error))


class _Asked:
    """One request that waits for its answer."""

    __slots__ = ("_door", "_reply", "invocation")

    def __init__(
        self, door: RequestDoor, reply: bytes, given: Input, raw: bytes, headers: bytes | None
    ) -> None:
        self._door = door
        self._reply = reply
        trace = "" if headers is None else parse_headers(headers).get("traceparent", "")
        self.invocation = Invocation(
            protocol="natq",
            task=door.task,
            work_id=given.run_id,
            body=given.body,
            raw=raw,
            queue=door._task_id,
            trace=trace,
            wire=given,
        )

    def answer(self, outcome: Outcome) -> None:
        door = self._door
        if door.check is not None:
            outcome = door.check.judged(outcome)
        output = reply_to(outcome, task_id=door._task_id, run_id=self.invocation.work_id)
        send(door._link, self._reply, output)


def send(link: Link, reply: bytes, output: Output) -> None:
    """Reply with ``output``; one that cannot be sent becomes an error that can."""
    error = output.error if isinstance(output.error, str) else ""
    try:
        body = _body(output.data)
        link.publish(reply, body, headers=reply_headers(output.status, error))
    except codec.JsonError as problem:
        _log.error("the answer of %s is not JSON: %s", output.task_id, problem)
        _send_error(link, reply, StatusCode.INTERNAL_ERROR, INTERNAL_ERROR)
    except PayloadTooLarge as problem:
        _send_error(link, reply, StatusCode.TOO_LARGE, problem.message)
    except LinkError as problem:  # the asker times out, as it would if this worker had died
        _log.error("an answer of %s was not sent: %s", output.task_id, problem)


def _send_error(link: Link, reply: bytes, status: int, error: str) -> None:
    try:
        link.publish(reply, b"", headers=reply_headers(int(status), error))
    except LinkError as problem:
        _log.error("an error answer was not sent: %s", problem)


def _body(data: Any) -> bytes:
    return b"" if data is UNSET else codec.encode(data)
