"""RESP: whatever is said comes out the same, in pieces of any size."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.resp import Push, RedisRefused, RespReader, encode_command

SCALARS = st.none() | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=40)
REPLIES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4), max_leaves=20)


def said(reply: Any) -> bytes:
    """A reply as Redis writes it."""
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    return b"*%d\r\n" % len(reply) + b"".join(map(said, reply))


@given(st.lists(REPLIES, max_size=6), st.data())
def test_replies_survive_any_cut(replies: list[Any], data: st.DataObject) -> None:
    stream = b"".join(map(said, replies))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader, got = RespReader(), []

    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += reader.feed(stream[start:end])

    assert got == replies


@given(st.lists(st.binary(max_size=40) | st.integers(-99, 99), min_size=1, max_size=6))
def test_commands_are_arrays_of_bulk_strings(parts: list[Any]) -> None:
    (read,) = RespReader().feed(encode_command(tuple(parts)))

    assert read == [part if isinstance(part, bytes) else b"%d" % part for part in parts]


def test_errors_and_states_are_told_apart() -> None:
    ok, refused = RespReader().feed(b"+OK\r\n-WRONGTYPE no\r\n")

    assert ok == b"OK"
    assert isinstance(refused, RedisRefused)
    assert (refused.kind, refused.message) == ("WRONGTYPE", "Redis refused: WRONGTYPE no")


def test_news_is_told_apart_from_answers() -> None:
    news, answer, greeting = RespReader().feed(
        b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n*1\r\n:1\r\n%1\r\n$1\r\nk\r\n_\r\n"
    )

    assert isinstance(news, Push)
    assert news == [b"invalidate", [b"a"]]
    assert not isinstance(answer, Push)
    assert greeting == [b"k", None]


@pytest.mark.parametrize("nonsense", [b"HTTP/1.1 200 OK\r\n", b"?\r\n", b"x" * 70_000])
def test_what_is_no_resp_is_told(nonsense: bytes) -> None:
    with pytest.raises(Exception, match="reply"):
        RespReader().feed(nonsense)
