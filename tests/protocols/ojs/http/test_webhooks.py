"""Webhooks: signed, told once, tried again, and never sent where they should not go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from penstock.protocols.ojs.hook_sender import PAUSES
from penstock.protocols.ojs.hooks import is_private, signature
from penstock.web.auth import Tokens
from penstock.web.message import Request, Response
from penstock.web.server import HttpServer

from ..conftest import OpenEngine
from .conftest import serving

JOB = {"type": "mail.send", "args": [], "options": {"queue": "hooked"}}


class Receiver:
    """Takes what comes; says what it is told to say, then yes."""

    def __init__(self) -> None:
        self.seen: asyncio.Queue[Request] = asyncio.Queue()
        self.answers: list[int] = []

    async def answer(self, request: Request) -> Response:
        self.seen.put_nowait(request)
        return Response(self.answers.pop(0) if self.answers else 204)

    def socket(self, request: Request) -> None:
        return None

    async def next(self) -> Request:
        async with asyncio.timeout(30):
            return await self.seen.get()


@dataclass
class Stage:
    http: httpx.AsyncClient
    receiver: Receiver
    url: str

    async def subscribe(self, *events: str, **more: Any) -> dict[str, Any]:
        body = {"url": self.url, "events": list(events), **more}
        answer = await self.http.post("/ojs/v1/webhooks/subscriptions", json=body)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()["subscription"]
        return made


@pytest.fixture
async def stage(open_engine: OpenEngine) -> AsyncIterator[Stage]:
    engine = await open_engine(webhooks_private=True)
    receiver = Receiver()
    async with HttpServer(receiver) as place, serving(engine, Tokens()) as http:
        yield Stage(http, receiver, f"{place.url}/hook")


async def test_an_event_that_is_wanted_arrives_signed_and_once(stage: Stage) -> None:
    made = await stage.subscribe("job.enqueued", filter={"queues": ["hooked"]})
    await stage.http.post("/ojs/v1/jobs", json={"type": "other", "args": []})
    job = (await stage.http.post("/ojs/v1/jobs", json=JOB)).json()["job"]

    request = await stage.receiver.next()

    event = json.loads(request.body)
    assert (event["type"], event["subject"]) == ("job.enqueued", job["id"])
    assert request.header("x-ojs-event-type") == "job.enqueued"
    assert request.header("x-ojs-subscription-id") == made["id"]
    wanted = signature(made["secret"], request.header("x-ojs-timestamp"), request.body)
    assert request.header("x-ojs-signature") == wanted
    listed = (await stage.http.get("/ojs/v1/webhooks/deliveries")).json()["deliveries"]
    assert [one["id"] for one in listed] == [request.header("x-ojs-delivery-id")]
    assert stage.receiver.seen.empty()


async def test_a_receiver_that_says_never_is_not_asked_again(stage: Stage) -> None:
    stage.receiver.answers = [410]
    await stage.subscribe("job.enqueued")
    await stage.http.post("/ojs/v1/jobs", json=JOB)
    request = await stage.receiver.next()
    name = request.header("x-ojs-delivery-id")

    found = await until_state(stage, name, "dead")

    assert (found["attempts"], found["last_status_code"]) == (1, 410)
    again = await stage.http.post(f"/ojs/v1/webhooks/deliveries/{name}/retry")
    assert again.json()["delivery"]["state"] == "pending"
    assert (await stage.receiver.next()).header("x-ojs-delivery-id") == name
    await until_state(stage, name, "delivered")


async def test_a_receiver_that_stumbles_is_asked_later_under_the_same_id(stage: Stage) -> None:
    stage.receiver.answers = [503]
    await stage.subscribe("job.enqueued")
    await stage.http.post("/ojs/v1/jobs", json=JOB)
    name = (await stage.receiver.next()).header("x-ojs-delivery-id")

    async with asyncio.timeout(30):
        found: dict[str, Any] = {"attempts": 0}
        while not found["attempts"]:
            answer = await stage.http.get(f"/ojs/v1/webhooks/deliveries/{name}")
            found = answer.json()["delivery"]

    assert (found["state"], found["attempts"]) == ("pending", 1)
    assert found["next_attempt_at"] is not None
    assert [pause.total_seconds() for pause in PAUSES[:3]] == [0, 30, 120]


async def test_a_subscription_lives(stage: Stage) -> None:
    made = await stage.subscribe("job.*", metadata={"team": "a"})
    path = f"/ojs/v1/webhooks/subscriptions/{made['id']}"

    shown = (await stage.http.get(path)).json()["subscription"]
    assert "secret" not in shown
    assert shown["metadata"] == {"team": "a"}
    listed = (await stage.http.get("/ojs/v1/webhooks/subscriptions")).json()["subscriptions"]
    assert [one["id"] for one in listed] == [made["id"]]
    changed = await stage.http.patch(path, json={"active": False, "events": ["job.failed"]})
    assert changed.json()["subscription"]["active"] is False
    probed = (await stage.http.post(f"{path}/test")).json()
    assert (probed["success"], probed["status_code"]) == (True, 204)
    rotated = (await stage.http.post(f"{path}/rotate-secret")).json()["subscription"]
    assert rotated["secret"] != made["secret"]
    await stage.http.post(f"{path}/test")
    await stage.receiver.next()
    both = (await stage.receiver.next()).header("x-ojs-signature").split(",")
    assert len(both) == 2
    assert (await stage.http.delete(path)).status_code == 200
    assert (await stage.http.delete(path)).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"url": "http://example.com"},
        {"events": ["job.*"]},
        {"url": "http://example.com", "events": []},
        {"url": "ftp://example.com", "events": ["a"]},
        {"url": "http://user:pass@example.com", "events": ["a"]},
        {"url": "http://127.0.0.1/", "events": ["a"]},
        {"url": "http://169.254.169.254/latest", "events": ["a"]},
        {"url": "http://[::1]/", "events": ["a"]},
        {"url": "http://localhost:1/", "events": ["a"]},
        {"url": "http://10.0.0.1/", "events": ["a"]},
    ],
)
async def test_what_is_no_place_to_send_to_is_refused(
    http: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    answer = await http.post("/ojs/v1/webhooks/subscriptions", json=body)

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_request"


def test_private_is_what_the_internet_cannot_reach() -> None:
    assert all(map(is_private, ("127.0.0.1", "10.1.2.3", "::1", "fe80::1", "localhost", "0.0.0.0")))
    assert not any(map(is_private, ("93.184.216.34", "example.com", "2606:2800:220:1::1")))


async def until_state(stage: Stage, name: str, state: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while True:
            answer = await stage.http.get(f"/ojs/v1/webhooks/deliveries/{name}")
            found: dict[str, Any] = answer.json()["delivery"]
            if found["state"] == state:
                return found
