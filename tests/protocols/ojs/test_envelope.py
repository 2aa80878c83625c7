"""Submissions: every rule of the envelope, and what is passed on untouched."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from penstock.core.ids import uuid7
from penstock.protocols.ojs.arrival import enqueue
from penstock.protocols.ojs.envelope import Submission, parse_submission
from penstock.protocols.ojs.fields import object_of
from penstock.protocols.ojs.instants import duration, duration_text, instant, instant_text
from penstock.protocols.ojs.names import queue_of_token, queue_token
from penstock.protocols.ojs.options import Limits
from penstock.protocols.ojs.record import public_view
from penstock.protocols.ojs.refusal import Refused

from .making import NOW, a_job, a_submission, dice

UPPER = "0194A0F0-0000-7000-8000-000000000000"


def parse(body: Any, tenant: str = "") -> Submission:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return parse_submission(object_of(data), now=NOW, limits=Limits(), tenant=tenant)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"args": []}, "type"),
        *(({"type": t, "args": []}, "type")
          for t in ("", "Mail", "mail send", "1mail", "a@b", "a!", "a..b", "a" * 256, 7)),
        ({"type": "a"}, "args"),
        *(({"type": "a", "args": a}, "args") for a in ({}, "x", 1, True, None)),
        *(({"type": "a", "args": [], "id": i}, "id")
          for i in ("", "nope", UPPER, "0194a0f0-0000-4000-8000-000000000000")),
        *(({"type": "a", "args": [], "options": {"queue": q}}, "options.queue")
          for q in ("A", "a_b", "a!", "a b", "-a", "", "q" * 129)),
        *(({"type": "a", "args": [], "options": {"priority": p}}, "options.priority")
          for p in (101, -101, 1.5, "1", True)),
        ({"type": "a", "args": [], "options": {"timeout_ms": 0}}, "options.timeout_ms"),
        ({"type": "a", "args": [], "options": {"scheduled_at": "tomorrow"}}, "scheduled_at"),
        ({"type": "a", "args": [], "options": {"scheduled_at": "2026-01-01T00:00:00"}}, "sched"),
        ({"type": "a", "args": [], "options": 7}, "options"),
        ({"type": "a", "args": [], "meta": []}, "meta"),
        ({"type": "a", "args": [], "version": [1]}, "version"),
    ],
    ids=str,
)  # fmt: skip
def test_what_does_not_fit_is_a_400_that_names_the_field(body: Any, field: str) -> None:
    with pytest.raises(Refused) as told:
        parse(body)
    assert told.value.refusal.status == 400
    assert field in told.value.refusal.message


@pytest.mark.parametrize("body", [b"", b"  ", b"{", b"[]", b"7", b'"x"', b"null", b"\xff"])
def test_what_is_not_an_object_is_an_invalid_payload(body: bytes) -> None:
    with pytest.raises(Refused) as told:
        parse(body)
    assert told.value.refusal.code == "invalid_payload"


def test_numbers_and_unknown_members_are_passed_on_as_they_were_sent() -> None:
    body = b'{"type":"a","args":[42, 3.14, 1e2],"x_big":12345678901234567890,"state":"active"}'
    record = enqueue(parse(body), uuid7(), NOW, dice())
    shown = bytes(public_view(record))
    assert b"[42, 3.14, 1e2]" in shown
    assert b'"x_big":12345678901234567890' in shown
    assert b'"state":"available"' in shown


def test_options_win_over_the_top_level_and_both_are_read() -> None:
    asked = parse({"type": "a", "args": [], "queue": "top", "options": {"queue": "inner"}})
    assert asked.queue == "inner"
    assert parse({"type": "a", "args": [], "queue": "top", "timeout": 3}).timeout_ms == 3000


def test_a_tenant_goes_into_meta_and_must_agree() -> None:
    asked = parse({"type": "a", "args": []}, tenant="acme")
    assert asked.tenant == "acme" and b'"tenant_id":"acme"' in bytes(asked.meta)
    with pytest.raises(Refused):
        parse({"type": "a", "args": [], "meta": {"tenant_id": "other"}}, tenant="acme")


def test_a_given_time_is_echoed_as_it_was_and_a_relative_one_resolved() -> None:
    given = "2027-01-01T01:00:00+01:00"
    assert a_job(expires_at=given).job.expires_at == given
    assert a_job(delay_until="+PT2S").job.scheduled_at == "2026-03-01T12:00:02.000Z"


def test_a_time_in_the_past_is_available_at_once() -> None:
    record = a_job(scheduled_at="2020-01-01T00:00:00Z")
    assert record.state == "available"


def test_metadata_of_the_options_is_merged_into_meta() -> None:
    asked = a_submission(meta={"a": 1}, metadata={"test_directive": "quiet"})
    assert msgspec.json.decode(asked.meta) == {"a": 1, "test_directive": "quiet"}


def test_too_much_meta_is_a_413() -> None:
    with pytest.raises(Refused) as told:
        parse({"type": "a", "args": [], "meta": {"x": "y" * 70_000}})
    assert told.value.refusal.status == 413


def test_absent_stays_absent() -> None:
    shown = msgspec.json.decode(public_view(a_job()))
    for name in ("started_at", "completed_at", "error", "result", "next_attempt_at", "tags"):
        assert name not in shown
    assert shown["attempt"] == 0 and shown["meta"] == {} and shown["max_attempts"] == 3


@pytest.mark.parametrize("queue", ["default", "a.b", "a-b.c", "0.0"])
def test_a_queue_token_has_no_dots_and_reads_back(queue: str) -> None:
    token = queue_token(queue)
    assert "." not in token and queue_of_token(token) == queue


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("PT1S", 1), ("PT1.5S", 1.5), ("P1D", 86400), ("P1W", 604800), ("PT1H30M", 5400),
     ("250ms", 0.25), ("1h30m", 5400)],
)  # fmt: skip
def test_durations_are_read_and_written(text: str, seconds: float) -> None:
    length = timedelta(seconds=seconds)
    assert duration(text) == length == duration(duration_text(length))


@pytest.mark.parametrize("text", ["", "P", "PT", "1", "PTS", "-PT1S", "P1S", "PT1X"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        duration(text)


def test_instants_go_out_in_utc_with_milliseconds() -> None:
    assert instant_text(instant("2026-02-12T11:30:00.123456789+01:00")) == (
        "2026-02-12T10:30:00.123Z"
    )
