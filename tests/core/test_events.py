"""Lifecycle events: a public record that reads the same in every language."""

from __future__ import annotations

import msgspec
import pytest

from penstock.core.codec import decode, encode
from penstock.core.events import Event, EventKind, Silent, now_utc
from penstock.core.invocation import PROTOCOLS


def an_event(**more: object) -> Event:
    known = {"kind": EventKind.RETRIED, "protocol": "ojs", "name": "resize", "work_id": "r-1"}
    return Event(**{**known, "at": now_utc(), **more})  # type: ignore[arg-type]


def test_the_kinds_are_a_promise() -> None:
    assert {kind.value for kind in EventKind} >= {
        "enqueued", "started", "progressed", "succeeded", "failed", "retried", "rejected",
        "snoozed", "cancelled", "expired", "dead_lettered",
    }  # fmt: skip


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_subject_names_protocol_and_kind(protocol: str) -> None:
    assert an_event(protocol=protocol).subject == f"penstock.event.{protocol}.retried"


def test_an_event_crosses_the_wire_unchanged() -> None:
    event = an_event(id=Event.new_id(), attempt=3, error_code="timeout", run_ms=1.5)

    assert msgspec.convert(decode(encode(event)), Event) == event


def test_an_event_leaves_out_what_it_does_not_know() -> None:
    assert set(decode(encode(an_event()))) == {"kind", "protocol", "name", "work_id", "at"}


async def test_the_silent_sink_takes_everything() -> None:
    sink = Silent()

    sink.emit(an_event())
    await sink.flush()
