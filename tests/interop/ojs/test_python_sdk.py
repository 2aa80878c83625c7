"""The documented HTTP calls of the official Python SDK, which is not on the registry.

It asks for plain JSON and cannot read anything else, sends no worker id with an ack, spells the
unique policy `key`, registers crons in the flat form, and builds workflows as graphs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.conformance.ojs.stage import instances


@pytest.fixture
async def sdk() -> AsyncIterator[httpx.AsyncClient]:
    headers = {"accept": "application/json", "content-type": "application/openjobspec+json"}
    async with (
        instances(1) as urls,
        httpx.AsyncClient(base_url=f"{urls[0]}/ojs/v1", headers=headers, timeout=30) as client,
    ):
        yield client


async def ask(sdk: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    answer = await sdk.request(method, path, json=body)
    assert answer.is_success, answer.text
    assert "application/json" in answer.headers["content-type"]
    return answer.json()


async def work_one(sdk: httpx.AsyncClient, queue: str) -> Any:
    asked = {"queues": [queue], "count": 1, "worker_id": "py", "visibility_timeout_ms": 30_000}
    jobs = (await ask(sdk, "POST", "/workers/fetch", asked))["jobs"]
    return jobs[0] if jobs else None


async def test_a_job_is_enqueued_worked_kept_and_acknowledged(sdk: httpx.AsyncClient) -> None:
    made = await ask(sdk, "POST", "/jobs", {"type": "email.send", "args": ["a"]})
    job = await work_one(sdk, "default")
    assert (job["id"], job["attempt"]) == (made["job"]["id"], 1)

    beat = {"worker_id": "py", "active_jobs": [job["id"]], "state": "running"}
    assert (await ask(sdk, "POST", "/workers/heartbeat", beat))["state"] == "running"
    told = {"job_id": job["id"], "percentage": 40, "message": "half way", "data": {"n": 1}}
    await ask(sdk, "POST", "/workers/progress", told)
    shown = await ask(sdk, "GET", f"/jobs/{job['id']}/progress")
    assert (shown["progress"], shown["data"]) == (0.4, {"n": 1})
    done = await ask(sdk, "POST", "/workers/ack", {"job_id": job["id"], "result": {"ok": True}})
    assert (done["acknowledged"], done["state"]) == (True, "completed")
    assert (await ask(sdk, "GET", f"/jobs/{job['id']}"))["job"]["result"] == {"ok": True}


async def test_a_failed_job_comes_again(sdk: httpx.AsyncClient) -> None:
    retry = {"max_attempts": 2, "initial_interval": "PT0.01S", "jitter": False}
    await ask(sdk, "POST", "/jobs", {"type": "a.b", "args": [], "options": {"retry": retry}})
    job = await work_one(sdk, "default")
    error = {"code": "handler_error", "message": "no", "retryable": True, "type": "ValueError"}
    answer = await ask(sdk, "POST", "/workers/nack", {"job_id": job["id"], "error": error})
    assert answer["state"] == "retryable"

    again = None
    while again is None:
        again = await work_one(sdk, "default")
    last = await ask(sdk, "POST", "/workers/nack", {"job_id": job["id"], "error": error})

    assert (again["attempt"], last["state"]) == (2, "discarded")


async def test_a_batch_goes_in_whole_and_queues_are_counted(sdk: httpx.AsyncClient) -> None:
    jobs = [{"type": "a.b", "args": [n], "options": {"queue": "many"}} for n in range(5)]
    assert (await ask(sdk, "POST", "/jobs/batch", {"jobs": jobs}))["count"] == 5

    stats = await ask(sdk, "GET", "/queues/many/stats")

    assert (stats["queue"]["name"], stats["stats"]["available"]) == ("many", 5)
    names = [one["name"] for one in (await ask(sdk, "GET", "/queues"))["queues"]]
    assert "many" in names
    await ask(sdk, "POST", "/queues/many/pause")
    assert await work_one(sdk, "many") is None
    await ask(sdk, "POST", "/queues/many/resume")
    assert (await work_one(sdk, "many"))["args"] == [0]


async def test_the_older_spellings_are_understood(sdk: httpx.AsyncClient) -> None:
    unique = {"key": ["type", "args"], "period": "PT1H", "on_conflict": "ignore"}
    job = {"type": "a.b", "args": [1], "options": {"unique": unique}}
    first = await ask(sdk, "POST", "/jobs", job)
    second = await ask(sdk, "POST", "/jobs", job)
    assert (second["job"]["id"], second["deduplicated"]) == (first["job"]["id"], True)

    flat = {"name": "daily", "cron": "0 9 * * *", "type": "a.b", "args": [], "timezone": "UTC"}
    made = (await ask(sdk, "POST", "/cron", flat))["cron_job"]
    assert (made["cron"], made["type"], made["status"]) == ("0 9 * * *", "a.b", "active")
    assert [one["name"] for one in (await ask(sdk, "GET", "/cron"))["cron_jobs"]] == ["daily"]
    await ask(sdk, "DELETE", "/cron/daily")


async def test_a_graph_runs_in_the_order_of_its_edges(sdk: httpx.AsyncClient) -> None:
    steps = [
        {"id": "load", "type": "etl.load", "args": [], "depends_on": []},
        {"id": "left", "type": "etl.left", "args": [], "depends_on": ["load"]},
        {"id": "right", "type": "etl.right", "args": [], "depends_on": ["load"]},
        {"id": "join", "type": "etl.join", "args": [], "depends_on": ["left", "right"]},
    ]
    made = (await ask(sdk, "POST", "/workflows", {"name": "etl", "steps": steps}))["workflow"]
    assert (made["name"], [step["id"] for step in made["steps"]]) == (
        "etl",
        ["load", "left", "right", "join"],
    )

    ran: list[str] = []
    while len(ran) < 4:
        if (job := await work_one(sdk, "default")) is not None:
            ran.append(job["type"])
            await ask(sdk, "POST", "/workers/ack", {"job_id": job["id"], "result": len(ran)})

    assert (ran[0], set(ran[1:3]), ran[3]) == ("etl.load", {"etl.left", "etl.right"}, "etl.join")
    ended = (await ask(sdk, "GET", f"/workflows/{made['id']}"))["workflow"]
    assert ended["state"] == "completed"


async def test_a_durable_context_resumes(sdk: httpx.AsyncClient) -> None:
    job = (await ask(sdk, "POST", "/jobs", {"type": "a.b", "args": []}))["job"]
    path = f"/checkpoints/{job['id']}"
    assert (await ask(sdk, "GET", f"{path}/resume"))["has_checkpoint"] is False

    await ask(sdk, "POST", path, {"state": {"step": 3}})

    resumed = await ask(sdk, "GET", f"{path}/resume")
    assert resumed["has_checkpoint"] is True
    assert resumed["checkpoint"]["state"] == {"step": 3}
