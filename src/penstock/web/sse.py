"""Server-sent events: framing, and a stream that stays alive through proxies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

__all__ = ["HEADERS", "KEEP_ALIVE", "event", "kept_alive"]

HEADERS = (
    ("content-type", "text/event-stream"),
    ("cache-control", "no-store"),
    ("x-accel-buffering", "no"),
)
KEEP_ALIVE = b": keep-alive\n\n"


def event(data: str, *, name: str = "", id: str = "", retry_ms: int | None = None) -> bytes:
    """One event. Line breaks in ``data`` become several data lines, as the format wants.

    >>> event("a\\nb", name="note")
    b'event: note\\ndata: a\\ndata: b\\n\\n'
    """
    lines = []
    if id:
        lines.append(f"id: {_one_line(id)}")
    if name:
        lines.append(f"event: {_one_line(name)}")
    if retry_ms is not None:
        lines.append(f"retry: {retry_ms}")
    lines += [
        f"data: {line}" for line in data.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    ]
    return "\n".join(lines).encode() + b"\n\n"


async def kept_alive(
    chunks: AsyncGenerator[bytes, None], *, every_s: float = 15.0
) -> AsyncGenerator[bytes, None]:
    """``chunks``, with a comment whenever nothing was said for a while. Closes them at its end."""
    async with aclosing(chunks):
        upcoming = asyncio.ensure_future(anext(chunks))
        try:
            while True:
                done, _ = await asyncio.wait([upcoming], timeout=every_s)
                if not done:
                    yield KEEP_ALIVE
                    continue
                try:
                    chunk = upcoming.result()
                except StopAsyncIteration:
                    return
                yield chunk
                upcoming = asyncio.ensure_future(anext(chunks))
        finally:
            upcoming.cancel()
            await asyncio.gather(upcoming, return_exceptions=True)


def _one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")
