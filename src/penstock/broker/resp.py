"""RESP, the words Redis speaks: commands to bytes, bytes to replies. No sockets here.

RESP2, and of RESP3 what a connection hears that asked to be told of changes (`Push`).

The reader takes bytes as they come, in pieces of any size, and never looks at a
finished element twice. An error reply is a value (`RedisRefused`), because in a
pipeline only its own caller should hear of it.
"""

from __future__ import annotations

from typing import TypeAlias

from penstock.core.errors import PenstockError

__all__ = [
    "Arg",
    "Push",
    "RedisRefused",
    "Reply",
    "RespReader",
    "encode_command",
    "encode_part",
]

Arg: TypeAlias = str | bytes | int
# A reply is bytes, int, None, a RedisRefused, or a list of these; typing it deeper
# would only make every caller cast.
Reply: TypeAlias = object

_BULK, _INT, _STATUS, _ERROR, _ARRAY = b"$:+-*"
_PUSH, _MAP, _NULL = b">%_"
_NESTED = (_ARRAY, _PUSH, _MAP)
_MAX_LINE = 64 * 1024


class Push(list[Reply]):
    """Something Redis tells that is nobody's answer."""


class RedisRefused(PenstockError):
    """Redis answered with an error; ``kind`` is its first word (``NOSCRIPT``, ``OOM`` …)."""

    code = "redis.refused"

    def __init__(self, text: str) -> None:
        super().__init__(f"Redis refused: {text}")
        self.text = text
        self.kind = text.split(" ", 1)[0] if text else ""
        if self.kind in ("WRONGPASS", "NOAUTH", "NOPERM"):
            self.remedy = "write redis://user:password@host with an account that may do this."


class RespError(PenstockError):
    """What came back is not RESP: the port belongs to something else, or bytes were lost."""

    code = "redis.protocol"
    remedy = "check that the URL names a Redis server (and TLS only where the server speaks it)."


def encode_part(value: Arg) -> bytes:
    """One argument as a bulk string."""
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    elif isinstance(value, int):
        value = b"%d" % value
    return b"$%d\r\n%b\r\n" % (len(value), value)


def encode_command(args: tuple[Arg, ...]) -> bytes:
    """One command with its arguments, ready for the socket."""
    return b"*%d\r\n%b" % (len(args), b"".join(map(encode_part, args)))


class RespReader:
    """Turns a stream of bytes into replies, keeping what is unfinished for the next piece."""

    __slots__ = ("_open", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._open: list[tuple[list[Reply], int]] = []  # arrays, and how many each still misses

    # One flat loop on purpose: a leased job is a dozen values, and a call costs more than a value.
    def feed(self, data: bytes) -> list[Reply]:
        """The replies that ``data`` completes, oldest first. Raises `RespError` on nonsense."""
        buffer = self._rest + data if self._rest else data
        end = len(buffer)
        find = buffer.find
        position = 0
        replies: list[Reply] = []
        around = self._open
        around[:1] = [(replies, -1)]  # below all arrays: never whole
        members, missing = around.pop()
        while position < end:
            eol = find(b"\r\n", position)
            if eol < 0:
                if end - position > _MAX_LINE:
                    raise RespError("a reply line never ended")
                break
            kind = buffer[position]
            after = eol + 2
            value: Reply
            if kind == _BULK:
                size = int(buffer[position + 1 : eol])
                if size < 0:
                    value = None
                else:
                    start, after = after, after + size + 2
                    if after > end:
                        break
                    value = buffer[start : after - 2]
            elif kind in _NESTED:
                size = int(buffer[position + 1 : eol]) * (2 if kind == _MAP else 1)
                if size > 0:
                    around.append((members, missing))
                    members, missing = (Push() if kind == _PUSH else []), size
                    position = after
                    continue
                value = [] if size == 0 else None
            else:
                value = _line(kind, buffer[position + 1 : eol])
            position = after
            members.append(value)
            missing -= 1
            while not missing:  # the array is whole, and perhaps the one around it with it
                value = members
                members, missing = around.pop()
                members.append(value)
                missing -= 1
        around.append((members, missing))
        self._rest = buffer[position:]
        return replies


def _line(kind: int, text: bytes) -> Reply:
    if kind == _INT:
        return int(text)
    if kind == _STATUS:
        return text
    if kind == _ERROR:
        return RedisRefused(text.decode("utf-8", "replace"))
    if kind == _NULL:
        return None
    raise RespError(f"a reply starts with {chr(kind)!r}")
