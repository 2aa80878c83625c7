"""What a request may weigh: counted unpacked, refused before it is held whole."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterable

__all__ = ["DEFAULT_MAX_BYTES", "BadEncoding", "TooLarge", "collected", "unpacked"]

DEFAULT_MAX_BYTES = 16 * 1024 * 1024
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
    async for chunk in chunks:
        size += len(chunk)
        if size > max_bytes:
            raise TooLarge(max_bytes)
        parts.append(bytes(chunk))
    return b"".join(parts)


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
