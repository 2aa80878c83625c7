"""Final records that fit: too large or unserialisable results become small, honest errors.

With ``large_results`` on, a result larger than a message may be goes to an object store
bucket and the record names it: ``{"$object": name, "bytes": n, "sha256": …}``. Clients of
ours resolve that; others see where it lies. It goes when its record is dropped or removed.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET, Struct

from penstock.core import codec, points
from penstock.core.errors import PenstockError
from penstock.core.ids import short_token
from penstock.protocols.natq.wire import Output, StatusCode, encode_output, result_key

if TYPE_CHECKING:
    from penstock.protocols.natq.room import Room

__all__ = [
    "REFERENCE",
    "FinalRecord",
    "ResultMissing",
    "ResultUnreadable",
    "final_record",
    "forget_large",
    "oversize",
    "resolved",
]

REFERENCE: Final = "$object"
_log = logging.getLogger("penstock.natq")
_HEADROOM = 512  # of max_payload, for the headers of a conditional write
_PATIENCE: Final = (0.25, 1.0)  # seconds between tries to keep a large result


class ResultMissing(PenstockError):
    """A record refers to a large result that somebody removed."""

    code = "natq.result_missing"
    remedy = "look who deletes from the object store bucket natq_large_results"


class ResultUnreadable(PenstockError):
    """A record or an answer is not JSON: its worker wrote what no other language can read."""

    code = "natq.result_unreadable"
    remedy = "look at what that worker's handler returns; NaN and infinities are not JSON"


class FinalRecord(Struct, frozen=True):
    """The bytes to store; ``fits`` is False when they are an error about the result itself."""

    output: Output
    record: bytes
    fits: bool = True


async def final_record(output: Output, room: Room, fence: int | None = None) -> FinalRecord:
    """``output`` as a record that the bucket can take, whatever the handler returned.

    ``fence`` is the revision of the processing record it will replace. A large result is an
    object of that hand-out alone, so a worker that was overtaken cannot change another's.
    """
    try:
        record = encode_output(output)
    except codec.JsonError as error:
        status, text = StatusCode.INTERNAL_ERROR, f"the result is not JSON: {error}"
        return _about(output, status, text)
    limit = _limit(room)
    if len(record) <= limit:
        return FinalRecord(output, record)
    if room.options.large_results and output.data is not UNSET:
        return await _by_reference(output, room, fence)
    return oversize(output, len(record), limit)


def oversize(output: Output, record_bytes: int, limit: int | None = None) -> FinalRecord:
    """The small error that takes the place of a record too large to keep."""
    over = "more than the bucket takes" if limit is None else f"over the limit of {limit}"
    text = f"the result has {record_bytes} bytes, {over}"
    return _about(output, StatusCode.TOO_LARGE, text)


async def resolved(output: Output, room: Room) -> Output:
    """``output`` with its data fetched, where the record only refers to it."""
    name = _reference_of(output)
    if name is None:
        return output
    stored = await (await room.large_results()).get(name)
    if stored is None:
        raise ResultMissing(f"the large result of {output.task_id} {output.id} is not there")
    return msgspec.structs.replace(output, data=codec.decode(stored))


async def forget_large(output: Output, room: Room) -> None:
    """Remove what ``output`` refers to. Best effort: what stays behind costs only space."""
    name = _reference_of(output)
    if name is None:
        return
    try:
        await (await room.large_results()).delete(name)
    except PenstockError as error:
        _log.warning("the large result %s was not removed: %s", name, error.message)


def _limit(room: Room) -> int:
    """Bytes that a record may have: the server's limit, or that of the bucket itself."""
    limit = room.link.max_payload
    if room.results.max_value_bytes is not None:
        limit = min(limit, room.results.max_value_bytes)
    return limit - _HEADROOM


def _reference_of(output: Output) -> str | None:
    """The name of the object that holds this output's data. Other data may look alike."""
    data = output.data
    if not isinstance(data, dict) or set(data) != {REFERENCE, "bytes", "sha256"}:
        return None
    name, ours = data[REFERENCE], f"{result_key(output.task_id, output.id)}@"
    return name if isinstance(name, str) and name.startswith(ours) else None


async def _by_reference(output: Output, room: Room, fence: int | None) -> FinalRecord:
    data = codec.encode(output.data)
    name = f"{result_key(output.task_id, output.id)}@{fence or short_token()}"
    await _keep(name, data, room)
    if points.armed:
        points.reach("natq.large_kept")
    reference: dict[str, Any] = {
        REFERENCE: name,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    small = msgspec.structs.replace(output, data=reference)
    return FinalRecord(small, encode_output(small))


async def _keep(name: str, data: bytes, room: Room) -> None:
    """Store a large result, waiting out a moment's outage. Raises the last problem there was."""
    for pause in (*_PATIENCE, None):
        try:
            await (await room.large_results()).put(name, data)
        except PenstockError:
            if pause is None:
                raise
            await asyncio.sleep(pause)
        else:
            return


def _about(output: Output, status: int, text: str) -> FinalRecord:
    error = Output(output.id, output.task_id, int(status), UNSET, text)
    return FinalRecord(error, encode_output(error), fits=False)
