"""Server-sent events: framing, keep-alives, and a source that is closed at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from penstock.web.sse import KEEP_ALIVE, event, kept_alive


def test_an_event_is_framed() -> None:
    framed = event('{"a":1}', name="job.done", id="7", retry_ms=1000)

    assert framed == b'id: 7\nevent: job.done\nretry: 1000\ndata: {"a":1}\n\n'


def test_line_breaks_cannot_forge_an_event() -> None:
    assert event("a\r\nb\rc", name="x\nid: 9") == b"event: x id: 9\ndata: a\ndata: b\ndata: c\n\n"


async def test_silence_is_filled_and_the_source_is_closed() -> None:
    closed = asyncio.Event()
    more = asyncio.Event()

    async def source() -> AsyncGenerator[bytes, None]:
        try:
            yield b"one"
            await more.wait()
            yield b"two"
            await asyncio.Event().wait()
        finally:
            closed.set()

    chunks = kept_alive(source(), every_s=0.01)
    assert await anext(chunks) == b"one"
    assert await anext(chunks) == KEEP_ALIVE
    more.set()
    while (chunk := await anext(chunks)) == KEEP_ALIVE:
        pass
    assert chunk == b"two"

    await chunks.aclose()

    assert closed.is_set()
