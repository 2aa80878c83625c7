"""Tasks: a typed function with the names, limits and schemas under which it is served."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Literal

from penstock.core.binding import Binding
from penstock.core.errors import ConfigError, UnknownName
from penstock.core.invocation import PROTOCOLS, ProtocolName
from penstock.core.policy import RetryPolicy

__all__ = ["DEFAULT_NAME", "InputShape", "RunsIn", "Task", "check_name", "length_of_time"]

DEFAULT_NAME = re.compile(r"[a-z][a-z0-9_-]*")
InputShape = Literal["auto", "fields", "whole"]

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")


class RunsIn(StrEnum):
    """Where a handler runs: async on the loop, sync in threads, ``cpu=True`` in processes."""

    LOOP = "loop"
    THREAD = "thread"
    PROCESS = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One handler as the runtime and the protocols see it.

    ``replies``: served as request/reply (natq sync) instead of as stored work.
    ``names`` overrides the name per protocol; ``queue`` is where OJS and OmniQ look.
    """

    name: str
    fn: Callable[..., Any]
    binding: Binding
    runs_in: RunsIn
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout: timedelta | None = None
    replies: bool = False
    concurrency: int | None = None
    queue: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)

    def name_on(self, protocol: ProtocolName) -> str:
        return self.names.get(protocol, self.name)

    @property
    def summary(self) -> str:
        """The first line of the handler's docstring."""
        return (inspect.getdoc(self.fn) or "").partition("\n")[0]


def check_name(name: str, names: Mapping[str, str]) -> None:
    """Refuse a task name that one of the five wires could not carry."""
    if not DEFAULT_NAME.fullmatch(name):
        raise ConfigError(
            f"task name {name!r} does not fit every protocol",
            remedy="use lower-case letters, digits, _ and -, starting with a letter; "
            "other names can be given per protocol: names={'ojs': 'image.resize'}",
            code="task.name",
        )
    for protocol in names:
        if protocol not in PROTOCOLS:
            raise UnknownName("protocol", protocol, PROTOCOLS)


def length_of_time(value: timedelta | float | str | None) -> timedelta | None:
    """A length of time as people write it: seconds, a timedelta, or ``"30s"``, ``"1h 30m"``.

    >>> length_of_time("1h 30m")
    datetime.timedelta(seconds=5400)
    """
    if value is None:
        return None
    if isinstance(value, str):
        parts = _LENGTH.findall(value)
        if not parts or _LENGTH.sub("", value).strip():
            raise ConfigError(
                f"{value!r} is not a length of time",
                remedy="write it like 250ms, 30s, 5m or 1h 30m",
            )
        value = sum(float(number) * _UNITS[unit] for number, unit in parts)
    try:
        length = value if isinstance(value, timedelta) else timedelta(seconds=value)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{value!r} s is no length of time", remedy="give fewer") from error
    if length < timedelta(0):
        raise ConfigError(f"a length of time of {length} is negative", remedy="give 0 or more")
    return length
