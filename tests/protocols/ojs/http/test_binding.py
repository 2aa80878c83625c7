"""The binding on every path: media types, headers, errors, tokens."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any

import httpx
import pytest

from penstock.protocols.ojs.http.serving import TABLES

OJS = "application/openjobspec+json"
JOB = {"type": "mail.send", "args": ["a@example.com"]}


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        (None, OJS),
        ("*/*", OJS),
        (OJS, OJS),
        ("application/json", "application/json"),
        (f"application/json, {OJS}", OJS),
        ("text/html", OJS),
    ],
)
async def test_the_client_chooses_between_two_names_of_json(
    http: httpx.AsyncClient, accept: str | None, media: str
) -> None:
    headers = {} if accept is None else {"accept": accept}
    request = http.build_request("POST", "/ojs/v1/jobs", json=JOB, headers=headers)
    if accept is None:
        del request.headers["accept"]

    answer = await http.send(request)

    assert answer.status_code == 201
    assert answer.headers["content-type"] == media
    assert answer.headers["ojs-version"] == "1.0"
    assert answer.headers["location"] == f"/ojs/v1/jobs/{answer.json()['job']['id']}"


async def test_every_answer_carries_the_request_id(http: httpx.AsyncClient) -> None:
    named = await http.get("/ojs/v1/health", headers={"x-request-id": "mine"})
    unnamed = await http.get("/nowhere")

    assert named.headers["x-request-id"] == "mine"
    assert re.fullmatch(r"req_[0-9a-f-]{36}", unnamed.headers["x-request-id"])
    assert error_of(unnamed)["request_id"] == unnamed.headers["x-request-id"]


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"", {}, 400, "invalid_payload"),
        (b"{", {}, 400, "invalid_payload"),
        (b"[]", {}, 400, "invalid_payload"),
        (b'{"type":"a","args":[NaN]}', {}, 400, "invalid_payload"),
        (b"\xff\xfe", {}, 400, "invalid_payload"),
        (b'{"type":"a","args":[]}', {"content-type": "text/xml"}, 400, "invalid_request"),
        (b'{"type":"a","args":[]}', {"ojs-version": "2.0"}, 422, "unsupported"),
        (b'{"type":"a","args":[]}', {"x-ojs-tenant": "a b"}, 400, "invalid_request"),
        (b'{"type":"a"}', {}, 400, "invalid_request"),
        (b'{"type":"a","args":[],"options":{"priority":101}}', {}, 400, "invalid_request"),
        (b"x" * (17 << 20), {}, 413, "envelope_too_large"),
        (b'{"type":"a","args":["' + b"x" * (1 << 20) + b'"]}', {}, 413, "envelope_too_large"),
    ],
)
async def test_what_cannot_be_read_is_told(
    http: httpx.AsyncClient, body: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    answer = await http.post("/ojs/v1/jobs", content=body, headers=headers)

    assert (answer.status_code, error_of(answer)["code"]) == (status, code)
    assert error_of(answer)["message"]


async def test_a_zipped_body_is_read(http: httpx.AsyncClient) -> None:
    packed = gzip.compress(json.dumps(JOB).encode())

    answer = await http.post("/ojs/v1/jobs", content=packed, headers={"content-encoding": "gzip"})

    assert answer.status_code == 201


async def test_a_wrong_method_names_the_right_ones(http: httpx.AsyncClient) -> None:
    answer = await http.put("/ojs/v1/workers/fetch", json={})

    assert answer.status_code == 405
    assert error_of(answer)["details"] == {"allow": "POST"}


async def test_numbers_come_back_as_they_were_sent(http: httpx.AsyncClient) -> None:
    body = b'{"type":"a","args":[42,3.140,1e2],"x_own":1.0,"meta":{"a.b":10.00}}'

    answer = await http.post("/ojs/v1/jobs", content=body)

    for part in (b'"args":[42,3.140,1e2]', b'"x_own":1.0', b'"meta":{"a.b":10.00}'):
        assert part in answer.content


async def test_nobody_without_a_token_comes_in(guarded: httpx.AsyncClient) -> None:
    bare = await guarded.get("/ojs/v1/queues")
    wrong = await guarded.get("/ojs/v1/queues", headers={"authorization": "Bearer guess"})

    assert (bare.status_code, error_of(bare)["code"]) == (401, "unauthenticated")
    assert bare.headers["www-authenticate"] == "Bearer"
    assert wrong.status_code == 401
    for path in ("/ojs/manifest", "/health", "/ready", "/metrics", "/ojs/openapi.json"):
        assert (await guarded.get(path)).status_code == 200


async def test_a_role_does_what_it_may_and_no_more(guarded: httpx.AsyncClient) -> None:
    def bearer(token: str) -> dict[str, str]:
        return {"authorization": f"Bearer {token}"}

    assert (await guarded.get("/ojs/v1/queues", headers=bearer("looks"))).status_code == 200
    no = await guarded.post("/ojs/v1/jobs", json=JOB, headers=bearer("looks"))
    assert (no.status_code, error_of(no)["code"]) == (403, "permission_denied")
    yes = await guarded.post("/ojs/v1/jobs", json=JOB, headers=bearer("works"))
    assert yes.status_code == 201
    config = {"backpressure": {"max_depth": 1}}
    path = "/ojs/v1/admin/queues/q/config"
    assert (await guarded.put(path, json=config, headers=bearer("works"))).status_code == 403
    assert (await guarded.put(path, json=config, headers=bearer("rules"))).status_code == 200


async def test_the_document_names_every_path_and_nothing_else(http: httpx.AsyncClient) -> None:
    document = (await http.get("/ojs/openapi.json")).json()

    told = {(method.upper(), path) for path, entry in document["paths"].items() for method in entry}
    served = {
        (route.method, re.sub(r"\*\}", "}", route.path)) for table in TABLES for route in table
    }
    assert told == served
    ids = [entry["operationId"] for path in document["paths"].values() for entry in path.values()]
    assert len(ids) == len(set(ids))


async def test_metrics_count_what_happened(http: httpx.AsyncClient) -> None:
    await http.post("/ojs/v1/jobs", json={**JOB, "options": {"queue": "counted"}})
    [job] = (await http.post("/ojs/v1/workers/fetch", json={"queues": ["counted"]})).json()["jobs"]
    await http.post("/ojs/v1/workers/ack", json={"job_id": job["id"]})

    answer = await http.get("/metrics", headers={"accept": "text/plain"})

    assert answer.headers["content-type"] == "text/plain"
    for line in (
        'ojs_job_enqueued_total{queue="counted",type="mail.send"} 1.0',
        'ojs_job_completed_total{queue="counted",type="mail.send"} 1.0',
        'ojs_queue_depth{queue="counted",state="completed"} 1.0',
        'ojs_job_duration_seconds_count{queue="counted",type="mail.send"} 1.0',
    ):
        assert line in answer.text


async def test_without_conformance_nothing_can_be_wiped(http: httpx.AsyncClient) -> None:
    assert (await http.post("/ojs/v1/admin/reset")).status_code == 404
