"""Workflows as values: what they are made of, and what their members' states mean for them.

One tree serves all forms: a job; a chain, whose parts run one after the other; a group, whose parts
run at once; a batch, a group with callbacks; a graph, whose steps name what they wait for. The
state of a workflow is never stored per member: `judge` reads it off the states of the jobs, and
says which jobs should exist and do not. Doing that twice does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from penstock.protocols.ojs.fields import Fields
from penstock.protocols.ojs.refusal import invalid

__all__ = ["Node", "Verdict", "judge", "leaves", "parents_of", "parse_flow", "succeeded"]

CALLBACKS: Final = ("on_complete", "on_success", "on_failure")
Kind = Literal["job", "chain", "group", "batch", "graph"]
Status = Literal["waiting", "running", "succeeded", "failed"]
_MAX_NAME: Final = 255


class Node(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a workflow. ``body`` is the job as it was sent; ``name`` and ``after`` belong to
    steps of a graph, where ``role`` marks a callback."""

    kind: Kind
    body: Raw | UnsetType = UNSET
    parts: tuple[Node, ...] = ()
    callbacks: dict[str, Node] = {}
    name: str = ""
    after: tuple[int, ...] = ()
    role: str = ""

    @property
    def is_flat(self) -> bool:
        """Whether all members start at once, so that nothing can follow before all are over."""
        return self.kind in ("group", "batch") and all(p.kind == "job" for p in self.parts)


class Verdict(Struct, frozen=True):
    status: Status
    start: tuple[str, ...] = ()


StateOf = Callable[[str], str | None]
"""The state of the job at a path; ``None`` if there is none yet."""


def judge(root: Node, state_of: StateOf) -> Verdict:
    """How far a workflow is, and the paths of jobs that should be there by now and are not."""
    start: list[str] = []
    status = _walk(root, "", state_of, start)
    return Verdict(status, tuple(start))


def leaves(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """Every job of a workflow with its path, callbacks last."""
    if node.kind == "job":
        yield path or "0", node
        return
    for index, part in enumerate(node.parts):
        yield from leaves(part, _below(path, str(index)))
    for role, callback in node.callbacks.items():
        yield from leaves(callback, _below(path, role))


def node_at(root: Node, path: str) -> Node:
    """The part that stands at ``path``."""
    node = root
    for word in path.split("."):
        node = node.callbacks[word] if word in node.callbacks else node.parts[int(word)]
    return node


def succeeded(root: Node, state_of: StateOf) -> int:
    """How many of the parts at the top have succeeded."""
    return sum(
        _walk(part, str(index), state_of, []) == "succeeded"
        for index, part in enumerate(root.parts)
    )


def status_at(root: Node, path: str, state_of: StateOf) -> Status:
    return _walk(node_at(root, path), path, state_of, [])


# What a job is given of those before it -----------------------------------------------


class Group(Struct, frozen=True):
    """Results to be given as an array: those of the jobs at these places, nested alike."""

    places: tuple[str | Group, ...]


def parents_of(root: Node, path: str) -> tuple[str | Group, ...]:
    """Whose results the job at ``path`` is given, in order: paths, or groups of them."""
    found: list[str | Group] = []
    node, here = root, ""
    for word in path.split("."):
        if word in node.callbacks:
            found += [_output(p, _below(here, str(i))) for i, p in enumerate(node.parts)]
            return tuple(found)
        index = int(word)
        if node.kind == "chain":
            found += [_output(node.parts[i], _below(here, str(i))) for i in range(index)]
        elif node.kind == "graph":
            after = node.parts[index].after
            found += [_output(node.parts[i], _below(here, str(i))) for i in after]
        node, here = node.parts[index], _below(here, word)
    return tuple(found)


def paths_in(places: tuple[str | Group, ...]) -> Iterator[str]:
    for place in places:
        if isinstance(place, Group):
            yield from paths_in(place.places)
        else:
            yield place


def results_of(places: tuple[str | Group, ...], results: Mapping[str, Raw]) -> list[Any]:
    """The results in the shape of ``places``, ``null`` where there is none."""
    return [
        results_of(place.places, results) if isinstance(place, Group) else results.get(place)
        for place in places
    ]


def _output(node: Node, path: str) -> str | Group:
    """What a finished part gives: a job its result, a chain its last one's, others all."""
    if node.kind == "job":
        return path
    inner = [_output(part, _below(path, str(i))) for i, part in enumerate(node.parts)]
    return inner[-1] if node.kind == "chain" else Group(tuple(inner))


# Judging ------------------------------------------------------------------------------


def _walk(node: Node, path: str, state_of: StateOf, start: list[str]) -> Status:
    match node.kind:
        case "job":
            return _job(path or "0", state_of, start)
        case "chain":
            return _chain(node, path, state_of, start)
        case "graph":
            return _graph(node, path, state_of, start)
        case _:
            return _batch(node, path, state_of, start)


def _job(path: str, state_of: StateOf, start: list[str]) -> Status:
    match state_of(path):
        case None:
            start.append(path)
            return "running"
        case "completed":
            return "succeeded"
        case "cancelled" | "discarded":
            return "failed"
        case _:
            return "running"


def _chain(node: Node, path: str, state_of: StateOf, start: list[str]) -> Status:
    for index, part in enumerate(node.parts):
        status = _walk(part, _below(path, str(index)), state_of, start)
        if status != "succeeded":
            return status
    return "succeeded"


def _batch(node: Node, path: str, state_of: StateOf, start: list[str]) -> Status:
    """A group, and if it has callbacks, those that apply once all parts are over."""
    parts = [_walk(p, _below(path, str(i)), state_of, start) for i, p in enumerate(node.parts)]
    if "running" in parts:
        return "running"
    failed = "failed" in parts
    applying = {"on_complete", "on_failure" if failed else "on_success"}
    called = [
        _walk(callback, _below(path, role), state_of, start)
        for role, callback in node.callbacks.items()
        if role in applying
    ]
    return _outcome(called, failed)


def _graph(node: Node, path: str, state_of: StateOf, start: list[str]) -> Status:
    """Steps in the order of their dependencies (`parse_flow` has sorted out cycles)."""
    status: dict[int, Status] = {}
    for index in _ordered(node.parts):
        before = [status[i] for i in node.parts[index].after]
        step, here = node.parts[index], _below(path, str(index))
        status[index] = _graph_step(step, here, before, state_of, start)
    called = [status[i] for i, p in enumerate(node.parts) if p.role and status[i] != "waiting"]
    members = [status[i] for i, p in enumerate(node.parts) if not p.role]
    if "running" in called or "running" in members:
        return "running"
    return _outcome(called, any(s != "succeeded" for s in members))


def _graph_step(
    step: Node, path: str, before: list[Status], state_of: StateOf, start: list[str]
) -> Status:
    if "running" in before:
        return "running"
    failed = any(status != "succeeded" for status in before)
    if (step.role == "on_success" and failed) or (step.role == "on_failure" and not failed):
        return "waiting"
    if not step.role and failed:
        return "waiting"
    return _walk(step, path, state_of, start)


def _outcome(called: list[Status], failed: bool) -> Status:
    """Where callbacks ran, theirs decides; else that of the members."""
    if "running" in called:
        return "running"
    if called:
        return "failed" if "failed" in called else "succeeded"
    return "failed" if failed else "succeeded"


def _below(path: str, word: str) -> str:
    return f"{path}.{word}" if path else word


# Reading ------------------------------------------------------------------------------


class Reader:
    """Reads a workflow as sent, counting jobs and depth. ``check`` refuses a bad job."""

    def __init__(
        self, check: Callable[[dict[str, Raw], str], None], *, max_depth: int, max_jobs: int
    ) -> None:
        self._check = check
        self._max_depth = max_depth
        self._left = max_jobs

    def read(self, fields: Fields, defaults: dict[str, Raw], depth: int = 0) -> Node:
        kind = fields.text("type")
        if depth > self._max_depth:
            raise invalid(fields.path, f"is nested deeper than {self._max_depth}")
        match kind:
            case "chain" | "group" | "batch" if "steps" in fields or "jobs" in fields:
                return self._compound(fields, kind, defaults, depth)
            case None if depth == 0:
                return self._graph(fields, defaults)
            case _ if depth == 0:
                raise fields.bad("type", "must be chain, group or batch, with steps or jobs")
            case _:
                return self._job(fields, defaults)

    def _compound(self, fields: Fields, kind: Any, defaults: dict[str, Raw], depth: int) -> Node:
        word = "steps" if "steps" in fields else "jobs"
        parts = tuple(self.read(part, defaults, depth + 1) for part in _each(fields, word))
        if not parts:
            raise fields.bad(word, "must not be empty")
        callbacks: dict[str, Node] = {}
        if kind == "batch":
            given = fields.fields("callbacks")
            for role in CALLBACKS:
                inner = given.fields(role) if given is not None else None
                if inner is not None:
                    callbacks[role] = self._job(inner, defaults)
            if not callbacks:
                raise fields.bad("callbacks", f"must name one of {', '.join(CALLBACKS)}")
        return Node(kind=kind, parts=parts, callbacks=callbacks)

    def _job(self, fields: Fields, defaults: dict[str, Raw], **more: Any) -> Node:
        self._left -= 1
        if self._left < 0:
            raise invalid(fields.path, "has more jobs than a workflow may have")
        body = {k: v for k, v in fields.raw.items() if k not in ("id", "depends_on")}
        own = fields.fields("options")
        options = {**defaults, **(own.raw if own is not None else {})}
        if options:
            body["options"] = Raw(msgspec.json.encode(options))
        body.setdefault("args", Raw(b"[]"))
        self._check(body, fields.path)
        return Node(kind="job", body=Raw(msgspec.json.encode(body)), **more)

    def _graph(self, fields: Fields, defaults: dict[str, Raw]) -> Node:
        steps = list(_each(fields, "steps"))
        if not steps:
            raise fields.bad("steps", "must not be empty")
        names = [
            step.text("id", max_chars=_MAX_NAME) or f"step-{n}" for n, step in enumerate(steps)
        ]
        places = {name: index for index, name in enumerate(names)}
        if len(places) < len(names):
            raise fields.bad("steps", "have ids that occur twice")
        parts = []
        for name, step in zip(names, steps, strict=True):
            after = []
            for wanted in step.texts("depends_on") or ():
                if wanted not in places:
                    raise step.bad("depends_on", f"{wanted[:128]!r} is not a step")
                after.append(places[wanted])
            options = step.fields("options")
            role = options.choice("callback_type", CALLBACKS) if options is not None else None
            parts.append(self._job(step, defaults, name=name, after=tuple(after), role=role or ""))
        if len(_ordered(tuple(parts))) < len(parts):
            raise fields.bad("steps", "depend on each other in a circle")
        return Node(kind="graph", parts=tuple(parts))


def parse_flow(fields: Fields, reader: Reader) -> Node:
    """The tree of a workflow as sent. Raises `Refused` naming the path."""
    given = fields.fields("options")
    return reader.read(fields, dict(given.raw) if given is not None else {})


def _each(fields: Fields, name: str) -> Iterator[Fields]:
    raw = fields.array(name)
    if raw is None:
        raise fields.bad(name, "is required and must be an array")
    for index, item in enumerate(msgspec.json.decode(raw, type=list[Raw])):
        path = f"{fields.at(name)}[{index}]"
        yield Fields(_members(item, path), path)


def _members(raw: Raw, path: str) -> dict[str, Raw]:
    try:
        return msgspec.json.decode(raw, type=dict[str, Raw])
    except msgspec.ValidationError:
        raise invalid(path, "must be an object") from None


def _ordered(parts: tuple[Node, ...]) -> list[int]:
    """Indexes so that each comes after what it depends on; shorter where there is a circle."""
    left = {index: set(part.after) for index, part in enumerate(parts)}
    following: dict[int, list[int]] = {}
    for index, part in enumerate(parts):
        for before in set(part.after):
            following.setdefault(before, []).append(index)
    ready = [index for index, before in left.items() if not before]
    found: list[int] = []
    while ready:
        index = ready.pop()
        found.append(index)
        for later in following.get(index, ()):
            left[later].discard(index)
            if not left[later]:
                ready.append(later)
    return found
