"""The splitter finds the frames that nats-py's own parser finds, however the bytes are cut."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nats.protocol.parser import Parser

from penstock.broker.errors import BadHeader
from penstock.broker.frames import (
    FrameError,
    Incoming,
    Splitter,
    header_lines,
    parse_headers,
    publish_frame,
    status_of,
)

subjects = st.from_regex(r"[A-Za-z0-9_$-]{1,12}(\.[A-Za-z0-9_$-]{1,12}){0,3}", fullmatch=True)
payloads = st.one_of(
    st.binary(max_size=200),
    st.sampled_from([b"\r\n", b"MSG a 1 3\r\nabc\r\n", b"PING\r\n", b"x" * 70_000]),
)
blocks = st.sampled_from(
    [
        b"NATS/1.0\r\nNats-Msg-Id: a1\r\n\r\n",
        b"NATS/1.0 404 No Messages\r\n\r\n",
        b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 2\r\n\r\n",
        b"NATS/1.0 503\r\n\r\n",
    ]
)
lines = st.sampled_from(
    [
        b"PING\r\n",
        b"PONG\r\n",
        b"+OK\r\n",
        b"-ERR 'Stale Connection'\r\n",
        b'INFO {"server_id":"N1","max_payload":1048576}\r\n',
    ]
)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    subject, sid, payload = draw(subjects), draw(st.integers(1, 9999)), draw(payloads)
    reply = draw(st.one_of(st.just(""), subjects))
    address = f"{subject} {sid} {reply} ".replace("  ", " ").encode()
    if not draw(st.booleans()):
        return b"MSG %b%d\r\n%b\r\n" % (address, len(payload), payload)
    block = draw(blocks)
    sizes = (len(block), len(block) + len(payload))
    return b"HMSG %b%d %d\r\n%b%b\r\n" % (address, *sizes, block, payload)


@st.composite
def chunked(draw: st.DrawFn) -> list[bytes]:
    stream = b"".join(draw(st.lists(st.one_of(messages(), lines), max_size=8)))
    cuts = draw(st.lists(st.integers(0, len(stream)), max_size=12))
    return [stream[a:b] for a, b in pairwise(sorted([0, *cuts, len(stream)]))]


class StockClient:
    """What nats-py's parser calls back on, written down."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None:
        self.seen.append(Incoming(b"%d" % sid, subject, reply or None, headers, data))

    async def _process_err(self, text: str) -> None:
        self.seen.append(b"-ERR")

    async def _process_ping(self) -> None:
        self.seen.append(b"PING")

    async def _process_pong(self) -> None:
        self.seen.append(b"PONG")

    async def _process_info(self, info: dict[str, Any]) -> None:
        self.seen.append(b"INFO")


def as_stock_sees_it(chunks: list[bytes]) -> list[Any]:
    client = StockClient()

    async def parse() -> None:
        parser = Parser(client)
        for chunk in chunks:
            await parser.parse(chunk)

    asyncio.run(parse())
    return client.seen


def as_we_see_it(chunks: list[bytes]) -> list[Any]:
    splitter = Splitter()
    frames = [frame for chunk in chunks for frame in splitter.feed(chunk)]
    named = [frame.split()[0] if isinstance(frame, bytes) else frame for frame in frames]
    return [frame for frame in named if frame != b"+OK"]


@settings(max_examples=250, deadline=None)
@given(chunked())
def test_any_chunking_gives_what_the_stock_parser_sees(chunks: list[bytes]) -> None:
    assert as_we_see_it(chunks) == as_stock_sees_it(chunks)


def test_registered_sids_are_handed_over_in_order_and_the_rest_is_returned() -> None:
    splitter = Splitter()
    heard: list[Any] = []
    splitter.handlers[b"7"] = lambda *message: heard.append(message)

    rest = splitter.feed(b"MSG a 7 1\r\nx\r\nPING\r\nMSG b 8 r 1\r\ny\r\nMSG c 7 q 0\r\n\r\n")

    assert heard == [(b"a", None, None, b"x"), (b"c", b"q", None, b"")]
    assert rest == [b"PING\r\n", Incoming(b"8", b"b", b"r", None, b"y")]
    assert splitter.messages_in == 3


def test_a_failing_handler_costs_only_its_own_message() -> None:
    faults: list[Exception] = []
    splitter = Splitter(on_fault=faults.append)
    heard: list[bytes] = []

    def picky(subject: bytes, reply: bytes | None, headers: bytes | None, payload: bytes) -> None:
        if payload == b"x":
            raise ValueError("not x")
        heard.append(payload)

    splitter.handlers[b"1"] = picky
    splitter.feed(b"MSG a 1 1\r\nx\r\nMSG a 1 1\r\ny\r\n")

    assert heard == [b"y"]
    assert [str(fault) for fault in faults] == ["not x"]


@pytest.mark.parametrize(
    "line",
    [
        b"MSG a 1 x\r\n",
        b"MSG a 1 -5\r\n",
        b"MSG a\r\n",
        b"MSG 1 3\r\n",
        b"MSG a b c d e 3\r\n",
        b"HMSG a 1 9 3\r\n",
        b"HMSG a 1 x 3\r\n",
        b"HMSG 1 2 3\r\n",
    ],
)
def test_what_no_server_sends_is_refused(line: bytes) -> None:
    with pytest.raises(FrameError):
        Splitter().feed(line + b"abc\r\n" * 4)


def test_a_line_without_end_is_refused_before_it_fills_the_memory() -> None:
    splitter = Splitter()
    with pytest.raises(FrameError):
        for _ in range(2000):
            splitter.feed(b"x" * 1024)


def test_a_reset_forgets_the_half_received_frame() -> None:
    splitter = Splitter()
    assert splitter.feed(b"MSG a 1 10\r\nabc") == []

    splitter.reset()

    assert splitter.feed(b"PING\r\n") == [b"PING\r\n"]


def test_a_huge_payload_costs_no_more_per_byte_than_a_small_one() -> None:
    def cpu_for(size: int) -> float:
        splitter, began = Splitter(), time.process_time()
        splitter.feed(b"MSG a 1 %d\r\n" % size)
        for _ in range(size // 16_384):
            splitter.feed(b"x" * 16_384)
        assert len(splitter.feed(b"\r\n")) == 1
        return time.process_time() - began

    small = min(cpu_for(4 << 20) for _ in range(3))
    assert cpu_for(64 << 20) < max(small, 0.005) * 16 * 6  # quadratic would be 16 times as much


def test_headers_survive_the_way_out_and_back() -> None:
    fields = {"Nats-Msg-Id": "a:1", "traceparent": "00-ab", "Name": "Zoë", "Empty": ""}

    frame = publish_frame(b"s", b"", header_lines(fields), b"body")
    block = frame.partition(b"\r\n")[2].removesuffix(b"body\r\n")

    assert parse_headers(block) == fields
    assert status_of(block) == (0, "")


@pytest.mark.parametrize(
    "fields", [{"A": "x\r\nB: y"}, {"A": "x\ny"}, {"A b": "x"}, {"A:": "x"}, {"": "x"}, {"Ä": "x"}]
)
def test_a_header_that_would_break_the_block_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(BadHeader):
        header_lines(fields)


@pytest.mark.parametrize(
    ("block", "status"),
    [
        (b"NATS/1.0 404 No Messages\r\n\r\n", (404, "No Messages")),
        (b"NATS/1.0 503\r\n\r\n", (503, "")),
        (b"NATS/1.0 503\r\nNats-Subject: a\r\n\r\n", (503, "")),
        (b"NATS/1.0\r\nA: 404 x\r\n\r\n", (0, "")),
        (None, (0, "")),
    ],
)
def test_a_status_is_told_from_plain_headers(block: bytes | None, status: tuple[int, str]) -> None:
    assert status_of(block) == status


def test_a_status_block_may_carry_fields_too() -> None:
    block = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 2\r\n\r\n"

    assert parse_headers(block) == {"Nats-Last-Consumer": "2"}
