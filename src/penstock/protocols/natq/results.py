"""Final records that fit: too large or unserialisable results become small, honest errors.

With ``large_results`` on, a result larger than a message may be goes to an object store
bucket and the record names it: ``{"$object": name, "bytes": n, "sha256": …}``. Clients of
ours resolve that; others see where it lies.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET, Struct

from penstock.core import codec, points
from penstock.core.errors import PenstockError
from penstock.protocols.natq.wire import Output, StatusCode, encode_output, result_key

if TYPE_CHECKING:
    from penstock.protocols.natq.room import Room

__all__ = ["REFERENCE", "FinalRecord", "ResultMissing", "final_record", "resolved"]

REFERENCE: Final = "$object"
_HEADROOM = 512  # of max_payload, for the headers of a conditional write


class ResultMissing(PenstockError):
    """A record refers to a large result that somebody removed."""

    code = "natq.result_missing"
    remedy = "look who deletes from the object store bucket natq_large_results"


class FinalRecord(Struct, frozen=True):
    """The bytes to store; ``fits`` is False when they are an error about the result itself."""

    output: Output
    record: bytes
    fits: bool = True


async def final_record(output: Output, room: Room) -> FinalRecord:
    """``output`` as a record that the bucket can take, whatever the handler returned."""
    try:
        record = encode_output(output)
    except codec.JsonError as error:
        status, text = StatusCode.INTERNAL_ERROR, f"the result is not JSON: {error}"
        return _about(output, status, text)
    limit = room.link.max_payload - _HEADROOM
    if len(record) <= limit:
        return FinalRecord(output, record)
    if room.options.large_results:
        return await _by_reference(output, room)
    text = f"the result has {len(record)} bytes, over the limit of {limit}"
    return _about(output, StatusCode.TOO_LARGE, text)


async def resolved(output: Output, room: Room) -> Output:
    """``output`` with its data fetched, where the record only refers to it."""
    data = output.data
    if not (isinstance(data, dict) and REFERENCE in data):
        return output
    stored = await (await room.large_results()).get(data[REFERENCE])
    if stored is None:
        raise ResultMissing(f"the large result of {output.task_id} {output.id} is not there")
    return msgspec.structs.replace(output, data=codec.decode(stored))


async def _by_reference(output: Output, room: Room) -> FinalRecord:
    data = codec.encode(output.data)
    name = result_key(output.task_id, output.id)
    await (await room.large_results()).put(name, data)
    if points.armed:
        points.reach("natq.large_kept")
    reference: dict[str, Any] = {
        REFERENCE: name,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    small = msgspec.structs.replace(output, data=reference)
    return FinalRecord(small, encode_output(small))


def _about(output: Output, status: int, text: str) -> FinalRecord:
    error = Output(output.id, output.task_id, int(status), UNSET, text)
    return FinalRecord(error, encode_output(error), fits=False)
