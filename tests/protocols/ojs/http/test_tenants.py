"""Tenants: each sees its own jobs, and nobody else's exist."""

from __future__ import annotations

import httpx

from penstock.web.auth import Tokens

from ..conftest import OpenEngine
from .conftest import serving

JOB = {"type": "mail.send", "args": [], "options": {"queue": "shared"}}
ANN, BOB = {"x-ojs-tenant": "ann"}, {"x-ojs-tenant": "bob"}


async def test_another_tenants_job_does_not_exist(http: httpx.AsyncClient) -> None:
    made = (await http.post("/ojs/v1/jobs", json=JOB, headers=ANN)).json()["job"]
    path = f"/ojs/v1/jobs/{made['id']}"

    assert made["meta"] == {"tenant_id": "ann"}
    assert (await http.get(path, headers=ANN)).status_code == 200
    for method, where in (
        ("GET", path),
        ("DELETE", path),
        ("POST", f"{path}/activate"),
        ("GET", f"{path}/checkpoint"),
        ("GET", f"{path}/history"),
    ):
        assert (await http.request(method, where, headers=BOB)).status_code == 404, where
    state = {"state": {"a": 1}}
    assert (await http.put(f"{path}/checkpoint", json=state, headers=BOB)).status_code == 404
    assert (await http.get(path)).json()["job"]["state"] == "available"


async def test_a_worker_of_a_tenant_gets_its_jobs_only(http: httpx.AsyncClient) -> None:
    for who in (ANN, BOB, {}):
        await http.post("/ojs/v1/jobs", json=JOB, headers=who)
    body = {"queues": ["shared"], "count": 10}

    mine = (await http.post("/ojs/v1/workers/fetch", json=body, headers=BOB)).json()["jobs"]
    rest = (await http.post("/ojs/v1/workers/fetch", json=body)).json()["jobs"]

    assert [job["meta"].get("tenant_id") for job in mine] == ["bob"]
    assert sorted(job["meta"].get("tenant_id", "") for job in rest) == ["", "ann"]


async def test_header_and_body_must_agree(http: httpx.AsyncClient) -> None:
    job = {**JOB, "meta": {"tenant_id": "bob"}}

    answer = await http.post("/ojs/v1/jobs", json=job, headers=ANN)

    assert answer.status_code == 400
    assert "tenant_id" in answer.json()["error"]["message"]


async def test_a_server_may_insist_on_a_tenant(open_engine: OpenEngine) -> None:
    engine = await open_engine(require_tenant=True)
    async with serving(engine, Tokens()) as http:
        assert (await http.post("/ojs/v1/jobs", json=JOB)).status_code == 400
        assert (await http.post("/ojs/v1/jobs", json=JOB, headers=ANN)).status_code == 201
        assert (await http.get("/ojs/v1/admin/stats")).status_code == 200
