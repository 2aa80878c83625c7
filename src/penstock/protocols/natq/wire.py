"""natq on the wire: names, subjects, keys, and the bytes of every message.

Nothing outside this file knows a field name. The format is that of the seed document,
with the choices of the wire reference taken; ``attempt`` and ``seq`` in a processing
record are ours, and every other SDK ignores them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from enum import IntEnum, StrEnum
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from penstock.core import codec
from penstock.core.errors import BadInput, ConfigError, PenstockError
from penstock.core.ids import uuid7
from penstock.core.invocation import MISSING

__all__ = [
    "BadRunId",
    "Input",
    "Output",
    "StatusCode",
    "TaskDefinition",
    "TaskType",
    "check_task_id",
    "consumer_name",
    "decode_definition",
    "decode_output",
    "encode_output",
    "encoded_input",
    "parse_input",
    "payload",
    "processing_record",
    "reply_headers",
    "reserved_run_id",
    "result_key",
    "subject_of",
    "submission",
    "without_reserved",
]

INVALID_JSON: Final = "Invalid JSON input"
INTERNAL_ERROR: Final = "Internal server error"

_RESERVED: Final = frozenset({"runId", "dropResultOnSuccess"})
_TASK_ID = re.compile(r"[A-Za-z0-9_-]+")
_is_run_id = re.compile(r"[-/_=A-Za-z0-9]+(?:\.[-/_=A-Za-z0-9]+)*").fullmatch
_PATH = re.compile(r" at (\$\S*)")
_SUBJECT = re.compile(r"[^\s.*>$][^\s.*>]*(?:\.[^\s.*>]+)*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")
_MAX_RUN_ID_CHARS = 512
_MAX_HEADER_CHARS = 1024


class TaskType(StrEnum):
    SYNC = "sync"
    ASYNC = "async"


class StatusCode(IntEnum):
    PROCESSING = 100
    OK = 200
    BAD_REQUEST = 400
    NOT_ACCEPTABLE = 406
    TOO_LARGE = 413
    INTERNAL_ERROR = 500
    UNAVAILABLE = 503


class TaskDefinition(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What producers discover in the tasks bucket. Schemas are texts of JSON Schema."""

    id: str
    type: TaskType
    subject: str | None = None
    input_schema: str | None = None
    output_schema: str | None = None


class Output(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A task's output, and a record in the results bucket."""

    id: str
    task_id: str
    status: int
    data: Any = UNSET
    error: str | UnsetType = UNSET
    attempt: int | UnsetType = UNSET
    seq: int | UnsetType = UNSET
    worker: str | UnsetType = UNSET

    @property
    def is_final(self) -> bool:
        return self.status != StatusCode.PROCESSING


class Input(Struct, frozen=True):
    """A task's input: the reserved members, and what is left of it for the handler."""

    run_id: str
    body: Any
    drop_result: bool = False


class BadRunId(PenstockError):
    """A run id that cannot be part of a key."""

    code = "natq.run_id"
    remedy = "use letters, digits, - / _ = and inner dots, or leave runId out to have one made"

    def __init__(self, run_id: str) -> None:
        shown = run_id if len(run_id) <= 60 else f"{run_id[:60]}…"
        super().__init__(f"runId {shown!r} cannot be used in a key")


_outputs = msgspec.json.Decoder(Output)
_definitions = msgspec.json.Decoder(TaskDefinition)


# Names ----------------------------------------------------------------------------------


def check_task_id(task_id: str) -> str:
    """``task_id`` if every part of the wire can carry it. Raises `ConfigError` otherwise."""
    if not _TASK_ID.fullmatch(task_id):
        raise ConfigError(
            f"task id {task_id!r} cannot be used on natq",
            remedy="use letters, digits, _ and - (it becomes a subject and a consumer name)",
            code="natq.task_id",
        )
    return task_id


def check_run_id(run_id: str) -> str:
    """``run_id`` if it can be part of a key. Raises `BadRunId` otherwise."""
    if len(run_id) > _MAX_RUN_ID_CHARS or not _is_run_id(run_id):
        raise BadRunId(run_id)
    return run_id


def result_key(task_id: str, run_id: str) -> str:
    return f"{task_id}.{run_id}"


def consumer_name(task_id: str) -> str:
    """The durable consumer (and queue group) that all workers of a task share."""
    return f"natq_worker_{task_id}"


def subject_of(task_id: str, prefix: str, definition: TaskDefinition | None = None) -> str:
    """Where ``task_id`` listens: as its worker announced, else prefix and id.

    An announced subject that could not be published to is not believed.
    """
    said = None if definition is None else definition.subject
    if said is not None and _SUBJECT.fullmatch(said):
        return said
    return prefix + check_task_id(task_id)


# Input ----------------------------------------------------------------------------------


def parse_input(
    payload: bytes, *, compat: bool = False, make_id: Callable[[], str] = uuid7
) -> Input:
    """What ``payload`` asks for. Raises `codec.JsonError` or `BadRunId`; both are final."""
    value = codec.decode(payload)
    if not isinstance(value, dict):
        return Input(make_id(), MISSING if value is None else value)
    given = value.pop("runId", None)
    drop = value.pop("dropResultOnSuccess", False)
    run_id = _run_id_of(given) if given else make_id()
    return Input(run_id, value, drop is True or (compat and bool(drop)))


def _run_id_of(given: Any) -> str:
    if isinstance(given, str):
        return check_run_id(given)
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return check_run_id(codec.encode(given).decode())
    raise BadRunId(codec.encode(given).decode())


def submission(body: Any, *, run_id: str, drop_result: bool = False) -> bytes:
    """The payload that asks for a run of a task with ``body``, an object or nothing.

    Raises `BadRunId`, and `BadInput` with the path of a member that cannot be sent.
    """
    return payload(body, check_run_id(run_id), drop_result)


def payload(body: Any, run_id: str, drop_result: bool) -> bytes:
    """As `submission`, for a run id that was checked or is our own."""
    whole = {**_members(body), "runId": run_id}
    if drop_result:
        whole["dropResultOnSuccess"] = True
    return encoded_input(whole)


def reserved_run_id(body: Any) -> str | None:
    """The run id that a whole input brings along in its reserved member, if any."""
    given = body.get("runId") if isinstance(body, dict) else None
    return _run_id_of(given) if given else None


def without_reserved(body: Any) -> Any:
    """What a handler sees of ``body``: not the members that are the protocol's own."""
    if isinstance(body, dict) and not _RESERVED.isdisjoint(body):
        return {name: value for name, value in body.items() if name not in _RESERVED}
    return body


def encoded_input(body: Any) -> bytes:
    """``body`` as JSON. Raises `BadInput` for what JSON cannot say, with its path."""
    try:
        return codec.encode(body)
    except codec.JsonError as error:
        found = _PATH.search(str(error))
        raise BadInput(
            f"the input is not JSON: {error}",
            path=found[1] if found else "$",
            remedy="send plain data: objects, lists, texts, finite numbers, booleans, null",
        ) from error


def _members(body: Any) -> dict[str, Any]:
    if body is MISSING or body is None:
        return {}
    if not isinstance(body, dict):
        raise BadInput(
            f"a natq job needs an object as input, to carry its run id, not {_kind(body)}",
            remedy="pass named arguments instead of a list or a bare value",
        )
    drop = body.get("dropResultOnSuccess", False)
    if not isinstance(drop, bool):
        raise BadInput(
            f"dropResultOnSuccess is {_kind(drop)}, and only true drops a result",
            path="$.dropResultOnSuccess",
            remedy="send true or false",
        )
    return body


def _kind(value: Any) -> str:
    return "an array" if isinstance(value, (list, tuple)) else f"a {type(value).__name__}"


# Output ---------------------------------------------------------------------------------


def processing_record(
    task_id: str,
    run_id: str,
    *,
    attempt: int | None = None,
    seq: int | None = None,
    worker: str = "",
) -> bytes:
    """The record that says a run is in progress. Ids were checked, so nothing needs escaping.

    ``attempt``: executions that count so far, this one included; left out on the first.
    ``seq``: the job's message, so that a record whose job is gone can be told apart.
    ``worker``: who runs it, so that a write whose answer was lost can be told from another's.
    """
    counted = "" if attempt is None else f',"attempt":{attempt}'
    placed = "" if seq is None else f',"seq":{seq}'
    held = f',"worker":"{worker}"' if worker else ""
    return f'{{"id":"{run_id}","taskId":"{task_id}","status":100{counted}{placed}{held}}}'.encode()


def encode_output(output: Output) -> bytes:
    """``output`` as strict JSON. Raises `codec.JsonError`."""
    return codec.encode(output)


def decode_output(data: bytes) -> Output:
    """A record as any SDK wrote it. Raises `codec.JsonError` for what is not one.

    Others write numbers as ids, ``null`` for no error, and NaN in data: all that is read,
    because a final record that cannot be read would let its job run again.
    """
    try:
        return _outputs.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _decode_leniently(data)


def _decode_leniently(data: bytes) -> Output:
    try:
        record = json.loads(data)  # unlike ours, it takes NaN
        if not isinstance(record, dict):
            raise TypeError(f"a record is an object, not {type(record).__name__}")
        if isinstance(record.get("id"), (int, float)):
            record["id"] = codec.encode(record["id"]).decode()
        for name in ("error", "attempt", "seq", "worker"):
            if record.get(name, UNSET) is None:
                del record[name]
        if not isinstance(record.get("error", ""), str):
            record["error"] = json.dumps(record["error"])
        return msgspec.convert(record, Output)
    except (ValueError, TypeError, RecursionError) as error:
        raise codec.JsonError(str(error)) from error


def decode_definition(data: bytes) -> TaskDefinition:
    """A task definition as any SDK wrote it. Raises `codec.JsonError` for what is not one."""
    try:
        return _definitions.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise codec.JsonError(str(error)) from error


def reply_headers(status: int, error: str = "") -> bytes:
    """Raw header lines of a sync reply; an error text cannot smuggle a line in."""
    if not error:
        return b"status: %d\r\n" % status
    return b"status: %d\r\nerror: %b\r\n" % (status, header_text(error).encode())


def header_text(text: str) -> str:
    """``text`` with control characters as blanks, cut to a sane length."""
    return _CONTROL.sub(" ", text)[:_MAX_HEADER_CHARS].encode("utf-8", "replace").decode()
