"""The tap hands what has a handler to it at once, and everything else on, in order."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats import errors as nats_errors

from penstock.broker.frames import Splitter
from penstock.broker.tap import Tap

OURS = b"MSG ours 1 5\r\nhello\r\n"
THEIRS = b"MSG theirs 2 reply 2\r\nhi\r\n"
HEADED = b"HMSG theirs 2 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"


class Stream(asyncio.Protocol):
    """Stands for the stream of a connection and its protocol: keeps what it was given."""

    def __init__(self, unread: bytes = b"") -> None:
        self._buffer = bytearray(unread)
        self.fault: Exception | None = None
        self.ended: list[str] = []

    def data_received(self, data: bytes) -> None:
        self._buffer += data

    def set_exception(self, error: Exception) -> None:
        self.fault = error

    def eof_received(self) -> bool | None:
        self.ended.append("eof")
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.append("lost")


def a_tap(stream: Stream) -> tuple[Tap, list[bytes]]:
    heard: list[bytes] = []
    splitter = Splitter()
    splitter.handlers[b"1"] = lambda _subject, _reply, _headers, payload: heard.append(payload)
    return Tap(stream, stream, splitter), heard


def test_a_message_with_a_handler_never_reaches_the_stream() -> None:
    stream = Stream()
    tap, heard = a_tap(stream)

    tap.data_received(OURS + b"PING\r\n" + OURS)

    assert heard == [b"hello", b"hello"]
    assert bytes(stream._buffer) == b"PING\r\n"


@pytest.mark.parametrize("frame", [THEIRS, HEADED, b"INFO {}\r\n", b"-ERR 'x'\r\n"])
def test_what_has_no_handler_goes_on_as_it_was_sent(frame: bytes) -> None:
    stream = Stream()
    tap, heard = a_tap(stream)

    tap.data_received(frame)

    assert bytes(stream._buffer) == frame
    assert heard == []


def test_nothing_overtakes_what_waits_in_the_stream() -> None:
    stream = Stream(unread=b"MSG ours 1 5\r\nhe")
    tap, heard = a_tap(stream)

    tap.data_received(b"llo\r\n")

    assert bytes(stream._buffer) == OURS
    assert not tap.opened
    stream._buffer.clear()  # its reader has come by
    tap.data_received(OURS)
    assert tap.opened
    assert heard == [b"hello"]


def test_after_a_connection_is_given_up_its_last_bytes_are_not_split() -> None:
    stream = Stream()
    tap, heard = a_tap(stream)
    tap.shut()

    tap.data_received(OURS)

    assert heard == []
    assert bytes(stream._buffer) == OURS


def test_bytes_that_are_not_nats_end_the_connection() -> None:
    stream = Stream()
    tap, _ = a_tap(stream)

    tap.data_received(b"MSG a 1 many\r\n")

    assert isinstance(stream.fault, nats_errors.ProtocolError)


def test_the_end_of_the_connection_is_passed_on() -> None:
    stream = Stream()
    tap, _ = a_tap(stream)

    assert tap.eof_received() is True
    tap.connection_lost(None)

    assert stream.ended == ["eof", "lost"]


@given(
    st.lists(st.sampled_from([OURS, THEIRS, HEADED, b"PING\r\n", b"+OK\r\n"]), max_size=20),
    st.lists(st.integers(min_value=1, max_value=40), min_size=1, max_size=200),
)
def test_however_the_bytes_are_cut_nothing_is_lost_or_reordered(
    frames: list[bytes], cuts: list[int]
) -> None:
    stream = Stream()
    tap, heard = a_tap(stream)
    whole = b"".join(frames)

    position = 0
    for cut in (*cuts, len(whole)):
        if position < len(whole):
            tap.opened = True  # the stand-in stream has no reader to empty it
            tap.data_received(whole[position : position + cut])
            position += cut

    assert len(heard) == frames.count(OURS)
    assert bytes(stream._buffer) == b"".join(frame for frame in frames if frame != OURS)
