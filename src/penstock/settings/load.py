"""Composing the settings: defaults, file, environment, flags; later wins, and all is checked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct

from penstock.core.errors import ConfigError, PenstockError, nearest
from penstock.core.invocation import PROTOCOLS, ProtocolName
from penstock.settings.model import Settings
from penstock.settings.secrets import shown
from penstock.settings.shape import (
    Field,
    converted,
    fields_of,
    sections_of,
    traits_of,
    type_words,
)
from penstock.settings.sources import (
    Given,
    find_file,
    from_environment,
    from_file,
    ignored_variables,
)

__all__ = ["Loaded", "load_settings"]

EMBEDDED = "embedded"


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings with what is known about them.

    ``origins`` has every dotted name; ``configured`` are the protocols with a section in a file,
    a variable or a flag; ``ignored`` are variables that look like ours and are not.
    """

    settings: Settings
    origins: Mapping[str, str]
    configured: tuple[ProtocolName, ...] = ()
    file: Path | None = None
    ignored: tuple[str, ...] = ()

    def rows(self) -> list[tuple[str, Any, str]]:
        """Every setting as name, value fit to be shown, origin."""
        return [
            (path, shown(_read(self.settings, path), field.kind), self.origins[path])
            for path, field in fields_of(Settings).items()
        ]


def load_settings(
    *,
    flags: Iterable[Given] = (),
    config: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Loaded:
    """The settings of this process. Every mistake is told with its place and the nearest name.

    ``config`` (then ``PENSTOCK_CONFIG``) names the file; else it is looked for from ``cwd``
    upwards. Raises `ConfigError`.
    """
    environ = os.environ if environ is None else environ
    cwd = Path.cwd() if cwd is None else cwd
    named = config or environ.get("PENSTOCK_CONFIG")
    file = (cwd / named) if named else find_file(cwd)
    known = fields_of(Settings)
    label = str(named) if named else _label(file, cwd) if file else ""
    given = from_file(file, label, known) if file else []
    given += [*from_environment(environ), *flags]
    values: dict[str, Any] = {}
    origins = dict.fromkeys(known, "default")
    for one in given:
        if _is_section(one):
            continue
        field = _field(one, known)
        values[one.path] = _value(one, field, cwd)
        origins[one.path] = one.origin
    sections = {one.path.partition(".")[0] for one in given}
    return Loaded(
        settings=_built(Settings, values),
        origins=origins,
        configured=tuple(name for name in PROTOCOLS if name in sections),
        file=file,
        ignored=tuple(ignored_variables(environ)),
    )


def _label(file: Path, cwd: Path) -> str:
    """How people would name the file from where they are."""
    if file.parent == cwd:
        return file.name
    relative = os.path.relpath(file, cwd)
    return relative if len(relative) < len(str(file)) else str(file)


def _is_section(given: Given) -> bool:
    return given.value is None and given.path in sections_of(Settings)


def _field(given: Given, known: Mapping[str, Field]) -> Field:
    """What is meant by a name; raises `ConfigError` with the nearest for one that is not known."""
    if given.path in known:
        return known[given.path]
    if given.path in sections_of(Settings):
        raise ConfigError(
            f"{given.origin}: {given.path!r} is a section, not a value",
            remedy=f"write [{given.path}] with names and values below it.",
            code="setting.unknown",
        )
    near = nearest(given.path, known)
    raise ConfigError(
        f"{given.origin}: setting {given.path!r} is not known",
        remedy=f"did you mean {near!r}?" if near else "see `penstock config show` for all names.",
        code="setting.unknown",
    )


def _value(given: Given, field: Field, cwd: Path) -> Any:
    traits = traits_of(field.kind)
    try:
        value = converted(given.value, field.kind, lax=not given.typed)
    except (ValueError, TypeError, PenstockError) as error:
        words = error.message if isinstance(error, PenstockError) else str(error)
        secret = "secret" in traits
        takes = _with_article(type_words(field.kind))
        got = "" if secret or repr(given.value) in words else f", not {given.value!r}"
        raise ConfigError(
            f"{given.origin}: {given.path} takes {takes}{got}" + ("" if secret else f" ({words})"),
            remedy=f"give {takes}" + (f" ({field.about.rstrip('.')})" if field.about else ""),
            code="setting.value",
        ) from error
    if given.path in ("nats.url", "redis.url") and value == EMBEDDED:
        return ""
    if "path" in traits and value and given.base is not None and given.base != cwd:
        return str(given.base / Path(value).expanduser())
    return str(Path(value).expanduser()) if "path" in traits and value else value


def _with_article(words: str) -> str:
    return words if words.startswith(("`", "true")) else f"a {words}"


def _built(struct: type[Struct], values: Mapping[str, Any], prefix: str = "") -> Any:
    sections = sections_of(struct)
    members: dict[str, Any] = {
        name: _built(section, values, f"{prefix}{name}.") for name, section in sections.items()
    }
    for path, value in values.items():
        head, _, name = path.rpartition(".")
        if (f"{head}." if head else "") == prefix and name not in sections:
            members[name] = value
    return struct(**members)


def _read(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = getattr(value, name)
    return value
