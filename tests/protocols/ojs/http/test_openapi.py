"""Whatever the OpenAPI document allows, and much that it does not: never a fault of the server,
and never an answer that the document does not tell of."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from queue import Queue
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from penstock.broker.embedded import EmbeddedNats
from penstock.broker.link import Link
from penstock.broker.options import NatsOptions
from penstock.protocols.ojs.engine import Engine
from penstock.protocols.ojs.http.openapi import openapi
from penstock.protocols.ojs.http.serving import TABLES, open_face
from penstock.web.server import HttpServer

CHECKS: Any = (not_a_server_error, response_schema_conformance, status_code_conformance)


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    """A server in a thread: the cases come from a client that blocks."""
    told: Queue[str | BaseException] = Queue()
    over = threading.Event()

    async def serve() -> None:
        with EmbeddedNats() as nats:
            link = await Link.open(NatsOptions.from_url(nats.url))
            async with (
                await Engine.open(link) as engine,
                open_face(engine) as face,
                HttpServer(face) as server,
            ):
                told.put(server.url)
                await asyncio.to_thread(over.wait)
            await link.close()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            told.put(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    url = told.get(timeout=60)
    assert isinstance(url, str), url
    yield url
    over.set()
    thread.join(60)


ANSWERED = {
    (route.method, re.sub(r"\*\}", "}", route.path))
    for table in TABLES
    for route in table
    if route.media != "text/event-stream" and not route.path.endswith("/admin/reset")
}
SCHEMA: Any = schemathesis.openapi.from_dict(openapi(TABLES, "test"))
OPERATIONS = [
    operation.ok()
    for operation in SCHEMA.get_all_operations()
    if (operation.ok().method.upper(), operation.ok().path) in ANSWERED
]


@pytest.mark.xdist_group("ojs_openapi")
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: f"{one.method} {one.path}")
def test_no_request_is_too_strange(operation: Any, server_url: str) -> None:
    @settings(
        max_examples=10,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def any_request(case: Any) -> None:
        case.call_and_validate(base_url=server_url, checks=CHECKS, timeout=30)

    any_request()
