"""Requests: what the reply says, in which spelling, for every kind of input and answer."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.conformance.natq.registry import check, expect
from tests.conformance.natq.stage import Reply, Stage

__all__: list[str] = []

_BROKEN = {"empty": b"", "half an object": b'{"a":', "not UTF-8": b'{"a": "\xff\xfe"}'}


def answered(reply: Reply, status: str, error: str | None = None) -> None:
    expect(reply.status == status, f"status {reply.status!r} instead of {status!r}")
    expect(error is None or reply.error == error, f"error {reply.error!r} instead of {error!r}")


@check("sync.bad_json", needs=("e2e-add",))
async def bad_json(stage: Stage) -> None:
    """Input that is not JSON is answered with 406 `Invalid JSON input` and no body."""
    for what, body in _BROKEN.items():
        reply = await stage.request("e2e-add", body)
        expect(reply.status == "406", f"{what}: status {reply.status!r}")
        expect(reply.error == "Invalid JSON input", f"{what}: error {reply.error!r}")
        expect(reply.body == b"", f"{what}: body {reply.body!r}")


@check("sync.headers", needs=("e2e-add", "e2e-client-error"))
async def headers(stage: Stage) -> None:
    """Header names are exactly `status` and, only with an error, `error`."""
    good = await stage.request("e2e-add", {"a": 1, "b": 2})
    bad = await stage.request("e2e-client-error", {})
    expect(set(good.headers) == {"status"}, f"on success: {sorted(good.headers)}")
    expect(set(bad.headers) == {"status", "error"}, f"on error: {sorted(bad.headers)}")


@check("sync.body_is_data_only", needs=("e2e-add", "e2e-client-error"))
async def body_is_data_only(stage: Stage) -> None:
    """The body is the data and nothing around it; without data it is empty."""
    good = await stage.request("e2e-add", {"a": 1, "b": 2, "runId": "body-run"})
    bad = await stage.request("e2e-client-error", {})
    expect(good.data == {"sum": 3}, f"body {good.body!r}")
    expect(bad.body == b"", f"body {bad.body!r} where there is no data")


@check("sync.exception", needs=("conf-raise-sync",))
async def exception(stage: Stage) -> None:
    """A handler that raises is answered with 500 `Unhandled exception: <message>`."""
    reply = await stage.request("conf-raise-sync", {})
    answered(reply, "500", "Unhandled exception: boom")
    expect(reply.body == b"", f"body {reply.body!r}")


@check("sync.status_as_given", needs=("conf-reply",))
async def status_as_given(stage: Stage) -> None:
    """Any status arrives as given, with its data and, from 300 on, its error."""
    for status in (100, 204, 302, 404, 503):
        error = {"error": f"why {status}"} if status >= 300 else {}
        reply = await stage.request(
            "conf-reply", {"status": status, "data": {"n": status}, **error}
        )
        answered(reply, str(status), error.get("error"))
        expect(reply.data == {"n": status}, f"{status}: body {reply.body!r}")


@check("sync.falsy_data", level="strict", needs=("conf-reply",))
async def falsy_data(stage: Stage) -> None:
    """Data that is 0, false or an empty text is sent."""
    values: list[Any] = [0, False, "", [], {}]
    for value in values:
        reply = await stage.request("conf-reply", {"status": 200, "data": value})
        answered(reply, "200")
        expect(reply.body != b"" and reply.data == value, f"{value!r} came as {reply.body!r}")


@check("sync.error_text_is_tamed", level="strict", needs=("conf-reply",))
async def error_text_is_tamed(stage: Stage) -> None:
    """Line breaks in an error become blanks and an endless text is cut; the status stays."""
    reply = await stage.request("conf-reply", {"status": 422, "error": "one\r\ntwo\nthree"})
    answered(reply, "422")
    words = (reply.error or "").split()
    expect(words == ["one", "two", "three"], f"error {reply.error!r}")
    reply = await stage.request("conf-reply", {"status": 422, "error": "x" * 200_000})
    answered(reply, "422")
    expect(0 < len(reply.error or "") < 100_000, f"error of {len(reply.error or '')} characters")


@check("sync.returns_nothing", level="strict", needs=("conf-none-sync",))
async def returns_nothing(stage: Stage) -> None:
    """A handler that returns nothing has succeeded without data."""
    reply = await stage.request("conf-none-sync", {})
    answered(reply, "200")
    expect(reply.body in (b"", b"null"), f"body {reply.body!r}")


@check("sync.returns_nothing_is_answered", needs=("conf-none-sync",))
async def returns_nothing_is_answered(stage: Stage) -> None:
    """A handler that returns nothing is answered at once, with 200 or 500."""
    reply = await stage.request("conf-none-sync", {})
    expect(reply.status in ("200", "500"), f"status {reply.status!r}")


@check("sync.unserializable", needs=("conf-unserializable-sync",))
async def unserializable(stage: Stage) -> None:
    """Data that JSON cannot say is answered with 500 `Internal server error`."""
    answered(await stage.request("conf-unserializable-sync", {}), "500", "Internal server error")


@check("sync.every_json_is_answered", needs=("e2e-echo", "e2e-add"))
async def every_json_is_answered(stage: Stage) -> None:
    """Arrays, texts, numbers and null get an answer and do no harm to the worker."""
    for value in ([1, 2], "text", 7, None):
        reply = await stage.request("e2e-echo", value)
        expect((reply.status or "").isdigit(), f"{value!r}: headers {reply.headers}")
    answered(await stage.request("e2e-add", {"a": 1, "b": 1}), "200")


@check("sync.any_json_is_input", level="strict", needs=("conf-echo",))
async def any_json_is_input(stage: Stage) -> None:
    """The handler sees any JSON value as it came; null is no input."""
    values: list[Any] = [[1, [2]], "text", 7, True, {"a": None}]
    for value in values:
        reply = await stage.request("conf-echo", value)
        answered(reply, "200")
        expect(reply.data == value, f"{value!r} came as {reply.body!r}")
    reply = await stage.request("conf-echo", None)
    answered(reply, "200")
    expect(reply.body in (b"", b"null"), f"null came as {reply.body!r}")


@check("sync.reserved_members", level="strict", needs=("conf-echo",))
async def reserved_members(stage: Stage) -> None:
    """`runId` and `dropResultOnSuccess` are not part of the data."""
    said = {"runId": "reserved-1", "dropResultOnSuccess": False, "a": 1}
    reply = await stage.request("conf-echo", said)
    answered(reply, "200")
    expect(reply.data == {"a": 1}, f"body {reply.body!r}")


@check("sync.run_ids", level="strict", needs=("e2e-add",))
async def run_ids(stage: Stage) -> None:
    """Run ids that cannot be a key are refused with 400; texts, numbers and none are fine."""
    refused: list[Any] = ["a b", ".a", "a.", "a*", "a>", [1], {"a": 1}]
    accepted: list[Any] = ["ok-1/2_3=4.5", 42, "", None]
    for run_id in refused:
        reply = await stage.request("e2e-add", {"a": 1, "b": 1, "runId": run_id})
        expect(reply.status == "400", f"{run_id!r}: status {reply.status!r}")
        expect(reply.error, f"{run_id!r}: refused without a reason")
    for run_id in accepted:
        reply = await stage.request("e2e-add", {"a": 1, "b": 1, "runId": run_id})
        expect(reply.status == "200", f"{run_id!r}: status {reply.status!r}")


@check("sync.no_reply_subject", needs=("e2e-add",))
async def no_reply_subject(stage: Stage) -> None:
    """A request nobody waits for does no harm."""
    await stage.client.publish("natq.req.e2e-add", b'{"a": 1, "b": 2}')
    answered(await stage.request("e2e-add", {"a": 1, "b": 1}), "200")


@check("sync.concurrent", level="strict", needs=("conf-sleep-sync",))
async def concurrent(stage: Stage) -> None:
    """Sixteen requests of 300 ms run side by side."""
    started = time.monotonic()
    asked = [stage.request("conf-sleep-sync", {"ms": 300}, timeout=10) for _ in range(16)]
    for reply in await asyncio.gather(*asked):
        answered(reply, "200")
    took = time.monotonic() - started
    expect(took < 2.4, f"took {took:.1f} s, one after the other would be 4.8 s")
