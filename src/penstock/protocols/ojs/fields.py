"""Reading one field at a time: what it may be, and a refusal that names it when it is not.

Members of a request arrive as raw JSON (`Fields`), so that what the server only passes on
(arguments, meta, unknown members) is never rewritten: 42 stays 42, 3.14 stays 3.14.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from re import Pattern
from typing import Any, Final

import msgspec
from msgspec import Raw

from penstock.core.codec import JsonError, decode
from penstock.protocols.ojs.instants import duration, instant
from penstock.protocols.ojs.refusal import Refusal, Refused, invalid

__all__ = ["MISSING", "NO_FIELDS", "Fields", "members", "object_of"]

MISSING: Final = object()
NO_FIELDS: Final[dict[str, Raw]] = {}

_members: Final = msgspec.json.Decoder(dict[str, Raw])
_MAX_SAFE: Final = 2**53 - 1


def object_of(body: bytes) -> dict[str, Raw]:
    """The members of a request body, each as it was sent. Raises `Refused` for anything that
    is not one JSON object which every reader of JSON could read."""
    if not body.strip():
        raise _unreadable("the request has no body")
    try:
        decode(body)  # all of it: what is only passed on must be readable by others too
        return _members.decode(body)
    except JsonError as error:
        raise _unreadable(f"the body is not JSON: {error}") from error
    except msgspec.ValidationError as error:
        raise _unreadable("the body is not a JSON object") from error


def members(raw: Raw, path: str) -> dict[str, Raw]:
    """The members of an object inside a body that `object_of` has already checked."""
    if not is_object(raw):
        raise invalid(path, "must be an object")
    return _members.decode(raw)


def is_object(raw: Raw) -> bool:
    return bytes(raw)[:1] == b"{"


def _unreadable(why: str) -> Refused:
    return Refused(Refusal("invalid_payload", why[:500]))


class Fields:
    """The members of one object and the path where it stands. Reading a member checks it;
    ``None`` stands for a member that is missing, and where said so, for ``null``."""

    __slots__ = ("code", "path", "raw")

    def __init__(self, raw: dict[str, Raw], path: str = "", code: str = "invalid_request") -> None:
        self.raw = raw
        self.path = path
        self.code = code

    def __contains__(self, name: str) -> bool:
        return name in self.raw

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def bad(self, name: str, problem: str) -> Refused:
        return invalid(self.at(name), problem, code=self.code)

    def value(self, name: str) -> Any:
        """The decoded member, or `MISSING`."""
        raw = self.raw.get(name)
        return MISSING if raw is None else msgspec.json.decode(raw)

    def text(self, name: str, *, max_chars: int = 1024) -> str | None:
        value = self.value(name)
        if value is MISSING:
            return None
        if not isinstance(value, str):
            raise self.bad(name, "must be a string")
        if len(value) > max_chars:
            raise self.bad(name, f"is longer than {max_chars} characters")
        return value

    def name(self, name: str, pattern: Pattern[str], rule: str) -> str | None:
        value = self.value(name)
        if value is MISSING:
            return None
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise self.bad(name, rule)
        return value

    def whole(self, name: str, low: int, high: int = _MAX_SAFE) -> int | None:
        value = self.value(name)
        if value is MISSING:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.bad(name, "must be an integer")
        if not low <= value <= high:
            raise self.bad(name, f"must be from {low} to {high}, not {value}")
        return value

    def number(self, name: str) -> float | None:
        value = self.value(name)
        if value is MISSING:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.bad(name, "must be a number")
        try:
            return float(value)
        except OverflowError:
            raise self.bad(name, "is too large") from None

    def flag(self, name: str) -> bool | None:
        value = self.value(name)
        if value is MISSING:
            return None
        if not isinstance(value, bool):
            raise self.bad(name, "must be true or false")
        return value

    def choice(self, name: str, known: tuple[str, ...]) -> str | None:
        value = self.value(name)
        if value is MISSING:
            return None
        if value not in known:
            raise self.bad(name, f"must be one of {', '.join(known)}")
        return str(value)

    def texts(self, name: str, *, max_items: int = 1000) -> tuple[str, ...] | None:
        value = self.value(name)
        if value is MISSING:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.bad(name, "must be an array of strings")
        if len(value) > max_items:
            raise self.bad(name, f"has more than {max_items} entries")
        return tuple(value)

    def length(self, name: str) -> timedelta | None:
        """A duration in ISO 8601, or ``1s``, ``250ms`` and the like."""
        value = self.text(name, max_chars=64)
        if value is None:
            return None
        try:
            return duration(value)
        except ValueError as error:
            raise self.bad(name, str(error)) from None

    def moment(self, name: str, now: datetime) -> tuple[datetime, str] | None:
        """An instant and how to echo it: verbatim, but resolved where it was relative."""
        value = self.text(name, max_chars=64)
        if value is None:
            return None
        try:
            at = instant(value, now)
        except ValueError as error:
            raise self.bad(name, str(error)) from None
        return at, "" if value.startswith("+") else value

    def array(self, name: str) -> Raw | None:
        raw = self.raw.get(name)
        if raw is not None and bytes(raw)[:1] != b"[":
            raise self.bad(name, "must be an array")
        return raw

    def object(self, name: str) -> Raw | None:
        raw = self.raw.get(name)
        if raw is not None and not is_object(raw):
            raise self.bad(name, "must be an object")
        return raw

    def fields(self, name: str) -> Fields | None:
        raw = self.raw.get(name)
        if raw is None:
            return None
        return Fields(members(raw, self.at(name)), self.at(name), self.code)
