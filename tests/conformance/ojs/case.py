"""A case as it is written: read from JSON, refused when it holds something not understood."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.conformance.ojs.matchers import unreadable

__all__ = ["BadCase", "Case", "Step", "grouped", "load", "read_case"]

METHODS: Final = frozenset(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"))
_EXTENSION_LEVEL: Final = 99
_CASE_KEYS: Final = frozenset(
    (
        "test_id",
        "level",
        "category",
        "name",
        "description",
        "spec_ref",
        "tags",
        "steps",
        "setup",
        "teardown",
        "preconditions",
    )
)
_STEP_KEYS: Final = frozenset(
    (
        "id",
        "action",
        "intent",
        "path",
        "headers",
        "body",
        "raw_body",
        "delay_ms",
        "duration_ms",
        "parallel_with",
        "assertions",
        "description",
        "captures",
    )
)
_ASSERTION_KEYS: Final = frozenset(
    (
        "status",
        "status_in",
        "status_one_of",
        "headers",
        "body",
        "body_absent",
        "body_contains",
        "timing_ms",
        "exclusive_claim",
        "equality",
        "body_comment",
        "headers_comment",
    )
)


class BadCase(ValueError):
    """A case holds something that the language does not know."""


@dataclass(frozen=True, slots=True)
class Step:
    id: str
    action: str
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None
    has_body: bool = False
    raw_body: str | None = None
    delay_ms: int = 0
    duration_ms: int = 0
    parallel_with: str | None = None
    assertions: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Case:
    """One case. Its ``key`` is unique, which the ids of the public suite are not."""

    test_id: str
    level: int
    category: str
    name: str
    description: str
    steps: tuple[Step, ...]
    setup: tuple[Step, ...] = ()
    teardown: tuple[Step, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.test_id}-{self.name}"

    @property
    def waits_ms(self) -> int:
        """How long the case itself wants to wait."""
        return sum(step.delay_ms + step.duration_ms for step in self.steps)


def load(folder: Path) -> list[Case]:
    """Every case below ``folder``, by id."""
    found = [read_case(json.loads(path.read_text()), path.name) for path in folder.rglob("*.json")]
    return sorted(found, key=lambda case: case.key)


def read_case(document: Any, where: str = "the case") -> Case:
    _only(document, _CASE_KEYS, where)
    return Case(
        test_id=document["test_id"],
        level=_level(document.get("level", 0)),
        category=document["category"],
        name=document["name"],
        description=document["description"],
        steps=_steps(document["steps"], where),
        setup=_steps(document.get("setup", {}).get("steps", ()), where),
        teardown=_steps(document.get("teardown", {}).get("steps", ()), where),
    )


def grouped(steps: Sequence[Step]) -> list[tuple[Step, ...]]:
    """Steps in the order of their start; those that name each other start together."""
    groups: list[tuple[Step, ...]] = []
    begun: set[str] = set()
    for step in steps:
        if step.id in begun:
            continue
        members = _together(step, steps)
        begun.update(member.id for member in members)
        groups.append(members)
    return groups


def _together(first: Step, steps: Sequence[Step]) -> tuple[Step, ...]:
    names = {first.id}
    while True:
        more = {s.id for s in steps if s.parallel_with in names}
        more |= {s.parallel_with for s in steps if s.id in names and s.parallel_with}
        if more <= names:
            return tuple(s for s in steps if s.id in names)
        names |= more


def _steps(documents: Iterable[Any], where: str) -> tuple[Step, ...]:
    return tuple(_step(document, f"{where}, step {document.get('id')}") for document in documents)


def _step(document: Any, where: str) -> Step:
    _only(document, _STEP_KEYS, where)
    action = document["action"]
    if action not in METHODS and action not in ("WAIT", "ASSERT"):
        raise BadCase(f"{where}: the action {action!r} is not known")
    assertions = document.get("assertions", {})
    _only(assertions, _ASSERTION_KEYS, f"{where}, assertions")
    _check_body(assertions.get("body", {}), where)
    return Step(
        id=document["id"],
        action=action,
        path=document.get("path", ""),
        headers=document.get("headers", {}),
        body=document.get("body"),
        has_body="body" in document,
        raw_body=document.get("raw_body"),
        delay_ms=document.get("delay_ms", 0),
        duration_ms=document.get("duration_ms", 0),
        parallel_with=document.get("parallel_with"),
        assertions=assertions,
    )


def _check_body(body: dict[str, Any], where: str) -> None:
    for path, matcher in body.items():
        if path == "$or":
            for alternative in matcher:
                _check_body({k: v for k, v in alternative.items() if k != "$empty"}, where)
        elif path.startswith("$") and not path.startswith("$."):
            raise BadCase(f"{where}: the operator {path} is not known")
        elif bad := unreadable(matcher):
            raise BadCase(f"{where}, {path}: {bad}")


def _level(written: Any) -> int:
    if written in ("ext", "extension"):
        return _EXTENSION_LEVEL
    return int(written)


def _only(document: Any, known: frozenset[str], where: str) -> None:
    if not isinstance(document, dict):
        raise BadCase(f"{where}: an object is wanted")
    if unknown := set(document) - known:
        raise BadCase(f"{where}: unknown {', '.join(sorted(unknown))}")
