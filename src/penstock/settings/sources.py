"""Where settings are given: files, environment variables, flags; each value with its origin."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.core.errors import ConfigError

__all__ = ["Given", "find_file", "from_environment", "from_file", "ignored_variables"]

FILE: Final = "penstock.toml"
PYPROJECT: Final = "pyproject.toml"
PREFIX: Final = "PENSTOCK_"

# One underscore is the short form that people type; later ones win. NATS_URL is everybody's.
SHORT_FORMS: Final = {
    "NATS_URL": "nats.url",
    "PENSTOCK_NATS_URL": "nats.url",
    "PENSTOCK_REDIS_URL": "redis.url",
    "PENSTOCK_NATS_SERVER": "nats.server_binary",
}
_READ_ELSEWHERE: Final = {
    "PENSTOCK_CONFIG",
    "PENSTOCK_DEBUG",
    "PENSTOCK_KILL_AT",
    "PENSTOCK_PARENT_PIPE",
    "PENSTOCK_PLAIN_LINK",
    "PENSTOCK_REDIS_SERVER",
    "PENSTOCK_SUPERVISED",
}


class Given(NamedTuple):
    """A value that somebody gave, by dotted name. ``typed``: it is not just a text.

    ``base`` is the folder that a relative path in it refers to.
    """

    path: str
    value: Any
    origin: str
    typed: bool = False
    base: Path | None = None


def find_file(cwd: Path) -> Path | None:
    """The nearest ``penstock.toml``, or ``pyproject.toml`` with our table, from ``cwd`` upwards."""
    for folder in (cwd, *cwd.parents):
        own = folder / FILE
        if own.is_file():
            return own
        shared = folder / PYPROJECT
        if shared.is_file() and "tool.penstock" in shared.read_text(errors="replace"):
            return shared
    return None


def from_file(path: Path, label: str, known: Mapping[str, Any]) -> list[Given]:
    """All that the file says; ``label`` names it in origins. Raises `ConfigError` if unreadable.

    A table that is there but empty is given too, with no value: its presence means something.
    """
    try:
        text = path.read_text(encoding="utf-8")
        said = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the settings file {label} cannot be read: {error}",
            remedy="correct --config or PENSTOCK_CONFIG.",
            code="config.file",
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{label} is not TOML: {error}", code="config.file") from error
    within = ""
    if path.name == PYPROJECT:
        said, within = said.get("tool", {}).get("penstock", {}), "tool.penstock."
    lines = _lines_of_keys(text)
    return [
        Given(name, value, _at(label, lines.get(within + name)), typed=True, base=path.parent)
        for name, value in _leaves(said, known)
    ]


def from_environment(environ: Mapping[str, str]) -> Iterator[Given]:
    """What variables say. An empty variable counts as not set."""
    for variable, path in SHORT_FORMS.items():
        if environ.get(variable):
            yield Given(path, environ[variable], variable)
    for variable in sorted(environ):
        nested = variable.startswith(PREFIX) and "__" in variable
        if (nested or variable in _TOP_LEVEL) and environ[variable]:
            path = variable.removeprefix(PREFIX).lower().replace("__", ".")
            yield Given(path, environ[variable], variable)


_TOP_LEVEL: Final = {"PENSTOCK_DATA", "PENSTOCK_EVENTS"}


def ignored_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables that look like ours and are read by nobody, with the nearest that is.

    They are told, not refused: Kubernetes sets ``PENSTOCK_SERVICE_HOST`` for a service
    of that name.
    """
    ours = {*SHORT_FORMS, *_TOP_LEVEL, *_READ_ELSEWHERE}
    told = []
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and "__" not in variable and variable not in ours:
            near = get_close_matches(variable, ours, n=1, cutoff=0.85)  # all share the prefix
            told.append(f"{variable} (did you mean {near[0]}?)" if near else variable)
    return told


def _leaves(table: Mapping[str, Any], known: Mapping[str, Any], prefix: str = "") -> Iterator[Any]:
    for key, value in table.items():
        path = prefix + key
        if isinstance(value, Mapping) and path not in known:
            if not value:
                yield path, None
            yield from _leaves(value, known, f"{path}.")
        else:
            yield path, value


def _at(label: str, line: int | None) -> str:
    return label if line is None else f"{label}:{line}"


_TABLE = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")


def _lines_of_keys(text: str) -> dict[str, int]:
    """The line of each key, as well as can be told without a TOML parser that keeps places."""
    lines: dict[str, int] = {}
    table = ""
    inside = ""  # the quotes of the multi-line string that we are in
    for number, line in enumerate(text.splitlines(), 1):
        if not inside:
            if found := _TABLE.match(line):
                table = f"{_plain(found[1])}."
                lines.setdefault(table.removesuffix("."), number)
            elif found := _KEY.match(line):
                lines.setdefault(table + _plain(found[1]), number)
        for quotes in ('"""', "'''"):
            if inside in ("", quotes) and line.count(quotes) % 2:
                inside = "" if inside else quotes
    return lines


def _plain(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))
