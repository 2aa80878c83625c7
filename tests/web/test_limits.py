"""Bodies are bounded, packed or not."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator

import pytest

from penstock.web.limits import BadEncoding, TooLarge, collected, unpacked


def test_gzip_is_unpacked_and_nothing_else() -> None:
    assert unpacked(gzip.compress(b"hello"), "GZIP", 100) == b"hello"
    assert unpacked(b"hello", "identity", 100) == b"hello"
    with pytest.raises(BadEncoding, match="br"):
        unpacked(b"hello", "br", 100)


def test_a_bomb_is_refused_at_the_limit() -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)
    assert len(bomb) < 60_000

    with pytest.raises(TooLarge):
        unpacked(bomb, "gzip", 1_000_000)


@pytest.mark.parametrize("body", [b"not gzip", gzip.compress(b"hello", mtime=0)[:-4], b""])
def test_a_broken_body_is_told(body: bytes) -> None:
    with pytest.raises(BadEncoding):
        unpacked(body, "gzip", 100)


async def test_an_endless_body_is_cut_off() -> None:
    given = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal given
        while True:
            given += 1
            yield b"x" * 10

    with pytest.raises(TooLarge):
        await collected(endless(), 100)
    assert given <= 11 + 41, "what is over the limit is read for a while, then no more"
