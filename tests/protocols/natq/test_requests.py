"""Sync tasks on a real server, byte by byte: headers, bodies, statuses, and who answers."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.errors import NoResponders
from penstock.core.errors import BadInput
from penstock.core.outcome import Continue, Done, Reject, Retry, Snooze
from penstock.protocols.natq.client import NatqClient
from penstock.protocols.natq.options import NatqOptions
from tests.protocols.natq.conftest import SECOND, Serve, a_task

if TYPE_CHECKING:
    from penstock.broker.link import Link


class Asker:
    """Sends raw bytes and shows what came back."""

    def __init__(self, link: Link, options: NatqOptions) -> None:
        self._link = link
        self._prefix = options.sync_prefix

    async def __call__(self, payload: bytes = b"{}") -> tuple[bytes, bytes]:
        reply = await self._link.request(f"{self._prefix}job".encode(), payload, timeout=10)
        return reply.headers or b"", reply.payload


@pytest.fixture
def ask(link: Link, options: NatqOptions) -> Asker:
    return Asker(link, options)


def a_request(fn: Any, **how: Any) -> Any:
    return a_task(fn, reply=True, **how)


def head(status: int, error: str = "") -> bytes:
    """The whole header block, spelled as on the wire."""
    said = f"error: {error}\r\n" if error else ""
    return f"NATS/1.0\r\nstatus: {status}\r\n{said}\r\n".encode()


async def echo(data: Any = None) -> Any:
    return data


@pytest.mark.parametrize(("payload", "body"), [
    (b'{"a": [1, {"b": null}]}', b'{"a":[1,{"b":null}]}'),
    (b'{"runId":"r","dropResultOnSuccess":true,"a":1}', b'{"a":1}'),
    (b"[1,2]", b"[1,2]"), (b'"text"', b'"text"'), (b"0", b"0"),
    (b"false", b"false"), (b'""', b'""'),
    (b"null", b""),
])  # fmt: skip
async def test_the_answer_is_the_data_alone_and_a_status(
    serve: Serve, ask: Asker, payload: bytes, body: bytes
) -> None:
    await serve(a_request(echo, input="whole"))

    assert await ask(payload) == (head(200), body)


@pytest.mark.parametrize("payload", [b"", b"{", b"\xff\xfe", b'{"a":NaN}', b"nope"])
async def test_what_is_not_json_is_answered_with_406(
    serve: Serve, ask: Asker, payload: bytes
) -> None:
    ran = []

    async def job(**fields: Any) -> None:
        ran.append(fields)

    await serve(a_request(job))

    assert await ask(payload) == (head(406, "Invalid JSON input"), b"")
    assert not ran


@pytest.mark.parametrize("run_id", [b'"a b"', b'".a"', b'"a*"', b"[1]", b"true"])
async def test_a_run_id_that_can_be_no_key_is_answered_with_400_and_a_remedy(
    serve: Serve, ask: Asker, run_id: bytes
) -> None:
    await serve(a_request(echo, input="whole"))

    headers, body = await ask(b'{"runId":%b}' % run_id)

    assert headers.startswith(b"NATS/1.0\r\nstatus: 400\r\nerror: runId ")
    assert b"use letters, digits" in headers
    assert body == b""


async def test_input_that_does_not_fit_is_a_400_that_names_the_field(
    serve: Serve, ask: Asker
) -> None:
    async def job(width: int) -> int:
        return width

    await serve(a_request(job))

    headers, body = await ask(b'{"width":"wide"}')

    assert b"status: 400\r\n" in headers
    assert b"at $.width" in headers
    assert body == b""


async def said(what: str) -> Any:
    match what:
        case "accepted":
            return Done({"n": 1}, status=202)
        case "reject":
            raise Reject("no such order", status=404, data={"order": 7})
        case "bad input":
            raise BadInput("too wide", path="$.width")
        case "retry":
            raise Retry("busy", status=503)
        case "boom":
            raise RuntimeError("boom\r\nstatus: 200")
        case "snooze":
            raise Snooze(5)
        case "continue":
            raise Continue({"page": 2})
        case "object":
            return object()
        case "nan":
            return {"x": float("nan")}
        case "huge":
            return "x" * 2_000_000
        case _:
            return None


@pytest.mark.parametrize(("what", "headers", "body"), [
    ("accepted", head(202), b'{"n":1}'),
    ("nothing", head(200), b""),
    ("reject", head(404, "no such order"), b'{"order":7}'),
    ("bad input", head(400, "too wide at $.width"), b""),
    ("retry", head(503, "busy"), b""),
    ("boom", head(500, "Unhandled exception: boom status: 200"), b""),
    ("snooze", head(503, "the task is not ready; ask again later"), b""),
    ("continue", head(503, "a request cannot continue in iterations"), b""),
    ("object", head(500, "Internal server error"), b""),
    ("nan", head(500, "Internal server error"), b""),
])  # fmt: skip
async def test_every_outcome_has_its_status_and_error(
    serve: Serve, ask: Asker, what: str, headers: bytes, body: bytes
) -> None:
    await serve(a_request(said))

    assert await ask(b'{"what":"%b"}' % what.encode()) == (headers, body)


async def test_an_answer_larger_than_a_message_is_a_413(serve: Serve, ask: Asker) -> None:
    await serve(a_request(said))

    headers, body = await ask(b'{"what":"huge"}')

    assert b"status: 413\r\n" in headers
    assert body == b""


async def test_a_handler_in_a_thread_answers_as_well(serve: Serve, ask: Asker) -> None:
    def job(n: int) -> int:
        return n + 1

    await serve(a_request(job))

    assert await ask(b'{"n":1}') == (head(200), b"2")


async def test_of_three_workers_one_answers_and_one_runs(
    serve: Serve, ask: Asker, link: Link, options: NatqOptions
) -> None:
    ran: list[int] = []
    answers: list[bytes] = []

    async def job(n: int) -> int:
        ran.append(n)
        return n

    for _ in range(3):
        await serve(a_request(job))
    await link.subscribe(
        f"{options.sync_prefix}answers", lambda _s, _r, _h, payload: answers.append(payload)
    )
    inbox = f"{options.sync_prefix}answers".encode()
    for n in range(20):
        link.publish(f"{options.sync_prefix}job".encode(), b'{"n":%d}' % n, reply=inbox)
    await ask(b'{"n":99}')
    async with asyncio.timeout(10):
        while len(answers) < 20:
            await asyncio.sleep(0.01)

    assert sorted(ran) == [*range(20), 99]


async def test_a_message_without_reply_subject_runs_nothing(
    serve: Serve, ask: Asker, link: Link, options: NatqOptions
) -> None:
    ran: list[int] = []

    async def job(n: int = 0) -> int:
        ran.append(n)
        return n

    await serve(a_request(job))
    link.publish(f"{options.sync_prefix}job".encode(), b'{"n":1}')

    assert await ask(b'{"n":2}') == (head(200), b"2")
    assert ran == [2]


async def test_requests_run_side_by_side_up_to_the_limit_and_the_rest_is_told(
    serve: Serve, ask: Asker
) -> None:
    started = 0
    released = asyncio.Event()

    async def job() -> str:
        nonlocal started
        started += 1
        await released.wait()
        return "done"

    await serve(a_request(job), requests=5)
    asked = [asyncio.create_task(ask()) for _ in range(5)]
    async with asyncio.timeout(10):
        while started < 5:
            await asyncio.sleep(0.01)
    headers, _ = await ask()
    released.set()

    assert b"status: 503\r\n" in headers
    assert b"5 requests already" in headers
    assert await asyncio.gather(*asked) == [(head(200), b'"done"')] * 5


async def test_a_drain_answers_what_was_asked_and_hears_no_more(serve: Serve, ask: Asker) -> None:
    started, released = asyncio.Event(), asyncio.Event()

    async def job() -> str:
        started.set()
        await released.wait()
        return "done"

    serving = await serve(a_request(job))
    accepted = [asyncio.create_task(ask())]
    await asyncio.wait_for(started.wait(), 10)
    stopping = asyncio.create_task(serving.stop(20 * SECOND))
    heard = True
    while heard:  # what still comes in before the door is shut is answered too
        asked = asyncio.create_task(ask())
        await asyncio.wait([asked], timeout=0.1)
        heard = not asked.done()
        if heard:
            accepted.append(asked)
    with pytest.raises(NoResponders):
        await asked
    released.set()
    await stopping

    assert await asyncio.gather(*accepted) == [(head(200), b'"done"')] * len(accepted)


async def test_a_request_that_outlives_the_grace_is_answered_with_503(
    serve: Serve, ask: Asker
) -> None:
    started = asyncio.Event()

    async def job() -> None:
        started.set()
        await asyncio.Event().wait()

    serving = await serve(a_request(job))
    asked = asyncio.create_task(ask())
    await asyncio.wait_for(started.wait(), 10)
    await serving.stop(0 * SECOND)

    assert await asked == (head(503, "the worker is stopping"), b"")


async def test_the_log_names_worker_task_and_run(
    serve: Serve, ask: Asker, client: NatqClient, caplog: pytest.LogCaptureFixture
) -> None:
    async def job() -> None:
        raise RuntimeError("boom")

    serving = await serve(a_request(job))
    with caplog.at_level(logging.INFO, "penstock"):
        await ask(b'{"runId":"r-7"}')

    (line,) = [r for r in caplog.records if "boom" in r.getMessage()]
    ids = (line.workerId, line.taskId, line.runId)  # type: ignore[attr-defined]
    assert ids == (serving.worker.id, "job", "r-7")
