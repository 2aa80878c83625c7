"""Ids never repeat and sort by time."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from penstock.core.ids import short_token, ulid, uuid7, uuid7_instant


@pytest.mark.parametrize("make", [uuid7, ulid, short_token])
def test_ids_never_repeat(make: object) -> None:
    assert callable(make)
    assert len({make() for _ in range(10_000)}) == 10_000


def test_uuids_sort_in_the_order_they_were_made() -> None:
    made = [uuid7() for _ in range(10_000)]

    assert made == sorted(made)
    assert {uuid.UUID(text).version for text in made} == {7}


def test_a_uuid_tells_when_it_was_made() -> None:
    before = datetime.now(UTC)
    made = uuid7_instant(uuid7())

    assert made is not None
    assert before - timedelta(milliseconds=1) <= made <= datetime.now(UTC)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "\ud800",
        "944a9c6b-34e1-4ec5-a52b-a56e0d3daf87",
        "ffffffff-ffff-7fff-bfff-ffffffffffff",
    ],
)
def test_what_tells_no_time_gives_none(text: str) -> None:
    assert uuid7_instant(text) is None


def test_ulids_have_the_length_and_time_order_of_ulids() -> None:
    first = ulid()
    until = time.time() + 0.002
    while time.time() < until:
        pass

    assert len(first) == 26
    assert first < ulid()
