"""Events over HTTP: pages, streams, sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import websockets

JOB = {"type": "mail.send", "args": [], "options": {"queue": "told"}}


async def enqueued(http: httpx.AsyncClient, **more: Any) -> str:
    answer = await http.post("/ojs/v1/jobs", json={**JOB, **more})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["job"]["id"])


async def run_one(http: httpx.AsyncClient, queue: str = "told") -> str:
    [job] = (await http.post("/ojs/v1/workers/fetch", json={"queues": [queue]})).json()["jobs"]
    done = await http.post("/ojs/v1/workers/ack", json={"job_id": job["id"]})
    assert done.status_code == 200
    return str(job["id"])


async def messages(lines: AsyncIterator[str]) -> AsyncIterator[tuple[str, str, Any]]:
    """(id, name, data) of each message of a stream."""
    fields: dict[str, str] = {}
    async for line in lines:
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield fields.get("id", ""), fields.get("event", ""), json.loads(fields["data"])
            fields = {}


async def test_pages_go_on_where_the_last_one_ended(http: httpx.AsyncClient) -> None:
    await enqueued(http)
    await run_one(http)

    seen: list[str] = []
    cursor = ""
    async with asyncio.timeout(30):
        while len(seen) < 3:
            query = {"queues": "told", "types": "job.*", "after": cursor, "limit": "1"}
            page = (await http.get("/ojs/v1/events", params=query)).json()
            seen += [event["type"] for event in page["events"]]
            cursor = page["cursor"] or cursor
    assert seen == ["job.enqueued", "job.started", "job.completed"]


async def test_a_stream_of_a_job_tells_its_life_and_ends_with_it(http: httpx.AsyncClient) -> None:
    job_id = await enqueued(http)
    told: list[tuple[str, str | None, str]] = []

    async with asyncio.timeout(30), http.stream("GET", f"/ojs/v1/jobs/{job_id}/events") as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        lines = answer.aiter_lines()
        assert await anext(lines) == "retry: 3000"
        working = asyncio.create_task(run_one(http))
        async for _, name, data in messages(lines):
            told.append((name, data["from"], data["to"]))
        await working

    assert told[-2:] == [
        ("job.state_changed", "available", "active"),
        ("job.state_changed", "active", "completed"),
    ]


async def test_a_stream_of_a_job_that_is_over_says_so_and_ends(http: httpx.AsyncClient) -> None:
    job_id = await enqueued(http)
    await run_one(http)

    async with asyncio.timeout(30), http.stream("GET", f"/ojs/v1/jobs/{job_id}/events") as answer:
        found = [data["to"] async for _, _, data in messages(answer.aiter_lines())]

    assert found == ["completed"]


async def test_a_stream_goes_on_after_the_last_event_that_was_seen(
    http: httpx.AsyncClient,
) -> None:
    first = await enqueued(http)
    async with asyncio.timeout(30):
        while not (page := (await http.get("/ojs/v1/events")).json())["events"]:
            pass
    last = page["events"][-1]["id"]
    second = await enqueued(http)

    async with (
        asyncio.timeout(30),
        http.stream(
            "GET", "/ojs/v1/events/stream?channel=all", headers={"last-event-id": last}
        ) as answer,
    ):
        async for _, name, data in messages(answer.aiter_lines()):
            assert data["subject"] != first
            assert (name, data["subject"]) == ("job.enqueued", second)
            break


async def test_an_unknown_job_has_no_stream(http: httpx.AsyncClient) -> None:
    answer = await http.get("/ojs/v1/jobs/01a1f5d3-6b0b-7356-89fe-000000000000/events")

    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/openjobspec+json"


async def test_a_socket_tells_what_was_subscribed_and_nothing_after(
    http: httpx.AsyncClient,
) -> None:
    url = str(http.base_url).replace("http", "ws") + "/ojs/v1/ws"
    async with asyncio.timeout(30), websockets.connect(url, subprotocols=["ojs.v1"]) as socket:  # type: ignore[list-item]
        await socket.send(json.dumps({"action": "subscribe", "channel": "queue:told"}))
        assert json.loads(await socket.recv())["type"] == "subscribed"
        job_id = await enqueued(http)
        event = json.loads(await socket.recv())
        assert (event["type"], event["event"]) == ("event", "job.state_changed")
        assert (event["data"]["job_id"], event["data"]["to"]) == (job_id, "available")

        await socket.send(json.dumps({"action": "unsubscribe", "channel": "queue:told"}))
        while json.loads(await socket.recv())["type"] != "unsubscribed":
            pass
        await socket.send("nonsense")
        error = json.loads(await socket.recv())
        assert (error["type"], error["code"]) == ("error", "invalid_payload")
        await socket.send(json.dumps({"action": "subscribe", "channel": "job:x"}))
        assert json.loads(await socket.recv())["code"] == "invalid_request"


async def test_a_socket_wants_a_token_where_everybody_must_have_one(
    guarded: httpx.AsyncClient,
) -> None:
    url = str(guarded.base_url).replace("http", "ws") + "/ojs/v1/ws"
    refused = False
    try:
        async with websockets.connect(url):
            pass
    except (websockets.InvalidStatus, websockets.InvalidHandshake):
        refused = True
    assert refused
    headers = {"authorization": "Bearer looks"}
    async with websockets.connect(url, additional_headers=headers) as socket:
        await socket.send(json.dumps({"action": "ping"}))
        assert json.loads(await socket.recv())["type"] == "pong"


async def test_a_client_that_hangs_up_gets_no_jobs(http: httpx.AsyncClient) -> None:
    body = {"queues": ["told"], "wait_ms": 30_000}
    waiting = asyncio.create_task(http.post("/ojs/v1/workers/fetch", json=body))
    await asyncio.sleep(0)
    async with httpx.AsyncClient(base_url=http.base_url) as other:
        lost = asyncio.create_task(other.post("/ojs/v1/workers/fetch", json=body))
        await asyncio.sleep(0)
        lost.cancel()
        await asyncio.gather(lost, return_exceptions=True)
    job_id = await enqueued(http)

    answer = await waiting

    async with asyncio.timeout(30):
        jobs = answer.json()["jobs"]
        while not jobs:
            again = await http.post("/ojs/v1/workers/fetch", json=body)
            jobs = again.json()["jobs"]
    assert [job["id"] for job in jobs] == [job_id]
