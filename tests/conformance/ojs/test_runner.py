"""The runner against a small real server: it resets, asks in turn, and judges what comes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from penstock.web.message import Request, Response
from penstock.web.server import HttpServer
from tests.conformance.ojs.case import Case, Step, read_case
from tests.conformance.ojs.modes import Mode
from tests.conformance.ojs.report import level_reached, summary
from tests.conformance.ojs.runner import Runner

JSON = [("content-type", "application/openjobspec+json")]


class Scribe:
    """Answers every request with what it has seen since the last reset."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    async def answer(self, request: Request) -> Response:
        if request.path == "/ojs/v1/admin/reset":
            self.seen.clear()
            return Response(200)
        self.seen.append(
            {
                "method": request.method,
                "path": request.path,
                "body": request.body.decode(),
                "type": request.header("content-type"),
            }
        )
        return Response(200, json.dumps({"seen": self.seen}).encode(), JSON)

    def socket(self, request: Request) -> None:
        return None


@pytest.fixture
async def scribe() -> AsyncIterator[tuple[Scribe, str]]:
    face = Scribe()
    async with HttpServer(face, port=0) as server:
        yield face, server.url


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient() as client:
        yield client


def case_of(*steps: dict[str, Any]) -> Case:
    words = dict.fromkeys(("category", "name", "description", "spec_ref"), "x")
    return read_case({**words, "test_id": "T", "level": 0, "tags": [], "steps": list(steps)})


async def test_steps_become_requests(scribe: tuple[Scribe, str], http: httpx.AsyncClient) -> None:
    case = case_of(
        {"id": "a", "action": "POST", "path": "/one", "body": {"x": 1}},
        {
            "id": "b",
            "action": "GET",
            "path": "/{{steps.a.response.body.seen[0].method}}",
            "assertions": {
                "status": 200,
                "body": {
                    "$.seen[0].body": '{"x": 1}',
                    "$.seen[0].type": "application/openjobspec+json",
                    "$.seen[1].path": "/POST",
                    "$.seen": "array:length:2",
                },
            },
        },
    )

    verdicts = await Runner([scribe[1]], http).run(case)

    assert [verdict.misses for verdict in verdicts] == [(), ()]


async def test_a_miss_does_not_stop_the_case_and_names_its_step(
    scribe: tuple[Scribe, str], http: httpx.AsyncClient
) -> None:
    case = case_of(
        {"id": "a", "action": "GET", "path": "/", "assertions": {"status": 404}},
        {"id": "b", "action": "GET", "path": "/", "assertions": {"body": {"$.seen[1]": "absent"}}},
    )

    verdicts = await Runner([scribe[1]], http).run(case)

    assert [[miss[:2] for miss in verdict.misses] for verdict in verdicts] == [["a:", "b:"]] * 2
    assert level_reached(verdicts) == -1
    assert "FAIL T-x" in summary(verdicts)


async def test_a_raw_body_is_sent_in_one_meaning_and_dropped_in_the_other(
    scribe: tuple[Scribe, str], http: httpx.AsyncClient
) -> None:
    case = case_of(
        {
            "id": "a",
            "action": "POST",
            "path": "/",
            "raw_body": "{ broken",
            "assertions": {"body": {"$.seen[0].body": "{ broken"}},
        }
    )

    strict, compat = await Runner([scribe[1]], http).run(case)

    assert (strict.mode, strict.passed) == (Mode.STRICT, True)
    assert (compat.mode, compat.passed) == (Mode.COMPAT, False)
    assert '""' in compat.misses[0]


async def test_the_word_assert_is_a_method_upstream(
    scribe: tuple[Scribe, str], http: httpx.AsyncClient
) -> None:
    case = case_of(
        {"id": "a", "action": "GET", "path": "/"},
        {
            "id": "b",
            "action": "ASSERT",
            "assertions": {
                "equality": {"$.steps.a.response.body": "{{steps.a.response.body}}"},
            },
        },
    )

    verdicts = await Runner([scribe[1]], http).run(case)

    assert all(verdict.passed for verdict in verdicts)
    assert [seen["method"] for seen in scribe[0].seen] == ["GET", "ASSERT"]


async def test_several_servers_are_asked_in_turn_and_a_dead_one_is_a_miss(
    scribe: tuple[Scribe, str], http: httpx.AsyncClient
) -> None:
    async with HttpServer(Scribe(), port=0) as other:
        dead = other.url
    case = case_of(
        {"id": "a", "action": "GET", "path": "/"},
        {"id": "b", "action": "GET", "path": "/"},
        {"id": "c", "action": "GET", "path": "/"},
    )

    [strict, _] = await Runner([scribe[1], dead], http).run(case)

    assert [miss.split(":")[0] for miss in strict.misses] == ["a", "c"]


async def test_a_hook_runs_between_steps(
    scribe: tuple[Scribe, str], http: httpx.AsyncClient
) -> None:
    calls: list[str] = []

    async def note(case: Case, step: Step) -> None:
        calls.append(step.id)

    case = case_of({"id": "a", "action": "GET"}, {"id": "b", "action": "GET"})
    await Runner([scribe[1]], http, between=note).run(case, [Mode.STRICT])

    assert calls == ["b"]
