"""Extensions of the specification, a story for each."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

JOB = {"type": "mail.send", "args": ["a"]}


def to(queue: str, **more: Any) -> dict[str, Any]:
    return {**JOB, "options": {"queue": queue, **more}}


async def enqueued(http: httpx.AsyncClient, job: dict[str, Any]) -> dict[str, Any]:
    answer = await http.post("/ojs/v1/jobs", json=job)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()["job"]
    return found


async def fetched(http: httpx.AsyncClient, queue: str, **more: Any) -> list[dict[str, Any]]:
    answer = await http.post("/ojs/v1/workers/fetch", json={"queues": [queue], **more})
    assert answer.status_code == 200, answer.text
    jobs: list[dict[str, Any]] = answer.json()["jobs"]
    return jobs


async def test_backpressure_refuses_what_is_over_the_bound(http: httpx.AsyncClient) -> None:
    config = {"backpressure": {"max_depth": 4, "strategy": "reject", "warning_threshold": 0.5}}
    path = "/ojs/v1/admin/queues/small/config"
    assert (await http.put(path, json=config)).status_code == 200
    first = await http.post("/ojs/v1/jobs", json=to("small"))
    second = await http.post("/ojs/v1/jobs", json=to("small"))
    assert "x-ojs-queue-depth" not in first.headers
    assert second.headers["x-ojs-queue-depth"] == "2"
    assert second.headers["x-ojs-queue-pressure"] == "0.50"
    batch = {"jobs": [to("small") for _ in range(3)]}
    assert (await http.post("/ojs/v1/jobs/batch", json=batch)).status_code == 429
    for _ in range(2):
        await enqueued(http, to("small"))

    full = await http.post("/ojs/v1/jobs", json=to("small"))

    assert (full.status_code, full.json()["error"]["code"]) == (429, "QUEUE_FULL")
    assert int(full.headers["retry-after"]) >= 1
    stats = (await http.get("/ojs/v1/queues/small/stats")).json()
    assert stats["stats"]["depth"] == 4


async def test_concurrency_of_a_key_holds_over_one_fetch_and_many(http: httpx.AsyncClient) -> None:
    limit = {"rate_limit": {"key": "tenant:1", "concurrency": 1}}
    for _ in range(3):
        made = await http.post("/ojs/v1/jobs", json=to("keyed", **limit))
    assert made.headers["x-ratelimit-limit"] == "1"

    [one] = await fetched(http, "keyed", count=2)
    assert await fetched(http, "keyed", count=2) == []
    shown = (await http.get("/ojs/v1/rate-limits/tenant:1")).json()
    assert shown["concurrency"] == {"limit": 1, "active": 1, "available": 0}
    await http.post("/ojs/v1/workers/ack", json={"job_id": one["id"]})
    assert len(await fetched(http, "keyed", count=2)) == 1
    assert (await http.get("/ojs/v1/rate-limits/unknown")).status_code == 404


async def test_checkpoints_count_from_one_and_outlive_the_job(http: httpx.AsyncClient) -> None:
    job = await enqueued(http, to("durable"))
    path = f"/ojs/v1/jobs/{job['id']}/checkpoint"
    assert (await http.get(path)).status_code == 404
    assert (await http.put(path, json={"state": {"n": 1}})).json()["sequence"] == 1
    assert (await http.put(path, json={"state": {}})).json()["sequence"] == 2
    [handed] = await fetched(http, "durable")
    assert handed["checkpoint"]["sequence"] == 2
    await http.post("/ojs/v1/workers/ack", json={"job_id": job["id"]})

    assert (await http.get(path)).json()["state"] == {}
    assert (await http.put(path, json={"state": {}})).status_code == 409
    assert (await http.put(path, json={})).status_code == 400
    for _ in range(2):
        assert (await http.delete(path)).json()["deleted"] is True


async def test_progress_never_goes_back_within_an_attempt(http: httpx.AsyncClient) -> None:
    job = await enqueued(http, to("slow"))
    path = f"/ojs/v1/jobs/{job['id']}/progress"
    assert (await http.get(path)).json()["progress"] is None
    await fetched(http, "slow")

    for told, shown in ((0.5, 0.5), (0.3, 0.5), (1.5, 1.0)):
        assert (await http.put(path, json={"progress": told})).json()["progress"] == shown
    assert (await http.put(path, json={})).status_code == 400


async def test_dead_letters_are_listed_changed_and_brought_back(http: httpx.AsyncClient) -> None:
    retry = {"max_attempts": 1, "on_exhaustion": "dead_letter"}
    ids = [(await enqueued(http, to("deadly", retry=retry)))["id"] for _ in range(3)]
    for job in await fetched(http, "deadly", count=3):
        error = {"code": "handler_error", "message": "no", "type": "Broken"}
        await http.post("/ojs/v1/workers/nack", json={"job_id": job["id"], "error": error})

    listed = (await http.get("/ojs/v1/dead-letter", params={"queue": "deadly"})).json()
    assert {job["id"] for job in listed["jobs"]} == set(ids)
    assert listed["pagination"]["total"] == 3
    by_error = (await http.get("/ojs/v1/dead-letter", params={"error_type": "Broken"})).json()
    assert len(by_error["jobs"]) == 3
    override = {"override": {"queue": "hospital"}}
    path = f"/ojs/v1/dead-letter/{ids[0]}/retry"
    assert (await http.post(path, json=override)).json()["job"]["queue"] == "hospital"
    assert [job["id"] for job in await fetched(http, "hospital")] == [ids[0]]
    unsure = await http.post("/ojs/v1/dead-letter/retry", json={"filter": {"queue": "deadly"}})
    assert unsure.status_code == 400
    done = await http.post("/ojs/v1/dead-letter/retry", json={"filter": {}, "confirm": True})
    assert done.json()["succeeded"] == 2
    assert (await http.get("/ojs/v1/dead-letter/stats")).json()["total"] == 0


async def test_versions_of_jobs_and_of_schemas(http: httpx.AsyncClient) -> None:
    for version in (1, 2, "2.0"):
        job = await enqueued(http, {**JOB, "version": version})
        assert job["version"] == version
    schema = {"schema": {"type": "array", "items": {"type": "string"}}}
    path = "/ojs/v1/admin/schemas/mail.send"
    made = await http.put(f"{path}/1", json=schema)
    assert (made.status_code, made.json()["version"]) == (201, 1)
    assert (await http.put(f"{path}/1", json=schema)).status_code == 409
    assert (await http.put(f"{path}/2", json={})).status_code == 400
    warned = await http.post("/ojs/v1/jobs", json={"type": "mail.send", "args": [1]})
    assert (warned.status_code, warned.json()["warnings"][0]["path"]) == (201, "$[0]")
    assert (await http.get(path)).json()["version"] == 1
    assert (await http.delete(f"{path}/1")).status_code == 200
    assert (await http.get(path)).status_code == 404


async def test_a_draining_worker_gets_nothing_and_is_not_well(http: httpx.AsyncClient) -> None:
    await enqueued(http, to("calm"))
    beat = {"worker_id": "w1", "state": "drain", "active_jobs": 0}
    assert (await http.post("/ojs/v1/workers/heartbeat", json=beat)).json()["acknowledged"]

    assert await fetched(http, "calm", worker_id="w1") == []
    health = await http.get("/ojs/v1/workers/w1/health")
    assert (health.status_code, health.json()["state"]) == (503, "drain")
    assert len(await fetched(http, "calm", worker_id="w2")) == 1
    assert (await http.get("/ojs/v1/workers/nobody/health")).status_code == 404


async def test_an_operator_tells_a_worker_to_be_quiet(http: httpx.AsyncClient) -> None:
    beat = {"worker_id": "w1", "active_jobs": 0, "hostname": "here"}
    await http.post("/ojs/v1/workers/heartbeat", json=beat)
    listed = (await http.get("/ojs/v1/admin/workers")).json()
    assert (listed["summary"]["total"], listed["items"][0]["hostname"]) == (1, "here")

    assert (await http.post("/ojs/v1/admin/workers/w1/quiet")).status_code == 200

    answer = (await http.post("/ojs/v1/workers/heartbeat", json=beat)).json()
    assert answer["state"] == "quiet"
    assert (await http.delete("/ojs/v1/admin/workers/w1")).status_code == 409


async def test_bulk_actions_want_to_be_confirmed(http: httpx.AsyncClient) -> None:
    for _ in range(3):
        await enqueued(http, to("bulky"))
    path = "/ojs/v1/admin/jobs/bulk/cancel"
    wanted = {"filter": {"queue": "bulky"}}
    assert (await http.post(path, json=wanted)).status_code == 400

    done = await http.post(path, json={**wanted, "confirm": True})

    assert (done.json()["matched"], done.json()["succeeded"]) == (3, 3)
    query = {"queue": "bulky", "state": "cancelled", "per_page": "2"}
    page = (await http.get("/ojs/v1/admin/jobs", params=query)).json()
    assert (len(page["items"]), page["pagination"]["total"]) == (2, 3)
    totals = (await http.get("/ojs/v1/admin/stats")).json()
    assert totals["jobs"]["cancelled"] == 3


async def test_what_only_passes_through_passes_unchanged(http: httpx.AsyncClient) -> None:
    meta = {"ojs.codec.encodings": ["aes"], "nested": {"a": [1.50]}, "traceparent": "00-a-b-01"}
    job = {**to("sealed"), "meta": meta, "ext_ml_gpu": {"count": 1}}
    made = await enqueued(http, job)
    [handed] = await fetched(http, "sealed")

    for seen in (made, handed):
        assert seen["meta"] == meta
        assert seen["ext_ml_gpu"] == {"count": 1}


async def test_validation_is_asked_for_by_the_job_itself(http: httpx.AsyncClient) -> None:
    job = {"type": "a.b", "args": [], "meta": {"ojs_validate": True}}

    answer = await http.post("/ojs/v1/jobs", json=job)

    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "validation_error")


@pytest.mark.parametrize("wait", ["true", "false"])
async def test_results_are_asked_for(http: httpx.AsyncClient, wait: str) -> None:
    job = await enqueued(http, to("asked"))
    path = f"/ojs/v1/jobs/{job['id']}/result"
    query = {"wait": wait, "timeout": "0.05"}
    assert (await http.get(path, params=query)).status_code == 408
    await fetched(http, "asked")
    await http.post("/ojs/v1/workers/ack", json={"job_id": job["id"], "result": {"n": 1}})

    assert (await http.get(path, params=query)).json()["result"] == {"n": 1}
    many = await http.post("/ojs/v1/jobs/results", json={"ids": [job["id"], "nothing"]})
    assert many.json()["results"] == {job["id"]: {"state": "completed", "result": {"n": 1}}}


async def test_many_acknowledgements_go_in_one_request(http: httpx.AsyncClient) -> None:
    for _ in range(5):
        await enqueued(http, to("many"))
    jobs = await fetched(http, "many", count=5)
    acks = [{"job_id": job["id"], "fence": job["fence"]} for job in jobs]
    acks.append({"job_id": jobs[0]["id"]})

    answer = (await http.post("/ojs/v1/workers/ack", json={"acks": acks})).json()

    assert (answer["acknowledged"], answer["failed"]) == (5, 1)
    assert sum("error" in item for item in answer["items"]) == 1
