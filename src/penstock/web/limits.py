"""What a request may weigh: counted unpacked, refused before it is held whole."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterable, AsyncIterator

__all__ = ["DEFAULT_MAX_BYTES", "BadEncoding", "TooLarge", "collected", "refused", "unpacked"]

DEFAULT_MAX_BYTES = 16 * 1024 * 1024
LINGER_TIMES = 4
LINGER_SECONDS = 5.0
_GZIP = 16 + zlib.MAX_WBITS


class TooLarge(Exception):
    """A body is over the limit; ``max_bytes`` says which."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the body is over the limit of {max_bytes} bytes")
        self.max_bytes = max_bytes


class BadEncoding(Exception):
    """A body is not what its Content-Encoding says."""


async def collected(chunks: AsyncIterable[bytes], max_bytes: int) -> bytes:
    """A body of unknown length, as long as it stays within the limit."""
    parts: list[bytes] = []
    size = 0
    arriving = aiter(_plain(chunks))
    async for chunk in arriving:
        size += len(chunk)
        if size > max_bytes:
            await _poured_away(arriving, max_bytes)
            raise TooLarge(max_bytes)
        parts.append(bytes(chunk))
    return b"".join(parts)


async def refused(chunks: AsyncIterable[bytes], max_bytes: int) -> TooLarge:
    """The refusal of a body that says itself that it is too large."""
    await _poured_away(_plain(chunks), max_bytes)
    return TooLarge(max_bytes)


async def _poured_away(chunks: AsyncIterator[bytes], max_bytes: int) -> None:
    """Let a client finish sending, within reason: a connection that is closed on unread bytes is
    reset, and the client would never see the answer that tells it why."""
    size = 0
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            async for chunk in chunks:
                size += len(chunk)
                if size > LINGER_TIMES * max_bytes:
                    return
    except TimeoutError:
        return


async def _plain(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """One iteration that may be handed on; the server's own body can be entered only once."""
    async for chunk in chunks:
        yield chunk


def unpacked(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """``body`` without its Content-Encoding. A small body that unpacks to a huge one is refused
    when the limit is reached, not after."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name != "gzip":
        raise BadEncoding(f"content encoding {encoding!r} is not known here; send gzip or none")
    inflater = zlib.decompressobj(_GZIP)
    try:
        plain = inflater.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise BadEncoding("the body is not gzip") from error
    if len(plain) > max_bytes:
        raise TooLarge(max_bytes)
    if not inflater.eof:
        raise BadEncoding("the gzip body ends too early")
    return plain
