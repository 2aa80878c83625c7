"""Routes: from method and path to a handler, without looking at all of them.

A pattern is a path whose parts may be names in braces: ``/jobs/{id}`` takes one part,
``/schemas/{uri*}`` takes the rest, slashes included. Exact paths are found in one look,
and win over patterns.

>>> routes: Router[str] = Router()
>>> routes.add("GET", "/jobs/{id}", "show")
>>> routes.find("GET", "/jobs/7")
Found(handler='show', params={'id': '7'})
>>> routes.find("PUT", "/jobs/7")
WrongMethod(allowed=('GET',))
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar
from urllib.parse import unquote

__all__ = ["Found", "Router", "WrongMethod"]

H = TypeVar("H")


@dataclass(frozen=True, slots=True)
class Found(Generic[H]):
    handler: H
    params: dict[str, str]


@dataclass(frozen=True, slots=True)
class WrongMethod:
    allowed: tuple[str, ...]


@dataclass(slots=True)
class _Node(Generic[H]):
    parts: dict[str, _Node[H]] = field(default_factory=dict)
    any_part: _Node[H] | None = None
    rest: _Leaf[H] | None = None
    leaf: _Leaf[H] | None = None


@dataclass(slots=True)
class _Leaf(Generic[H]):
    methods: dict[str, tuple[H, tuple[str, ...]]] = field(default_factory=dict)


class Router(Generic[H]):
    """Handlers by route. Adding one twice is a mistake and raises `ValueError`."""

    def __init__(self) -> None:
        self._root: _Node[H] = _Node()
        self._exact: dict[str, _Leaf[H]] = {}

    def add(self, method: str, pattern: str, handler: H) -> None:
        names = tuple(p[1:-1].rstrip("*") for p in pattern.split("/") if _is_name(p))
        leaf = self._leaf_of(pattern)
        if method in leaf.methods:
            raise ValueError(f"{method} {pattern} has a handler already")
        leaf.methods[method] = (handler, names)

    def find(self, method: str, path: str) -> Found[H] | WrongMethod | None:
        """The handler of a request; HEAD is answered by GET. ``None``: no such path."""
        exact = self._exact.get(path)
        if exact is not None:
            return _chosen(exact, method, [])
        values: list[str] = []
        leaf = self._walk(self._root, path.split("/")[1:], 0, values)
        return None if leaf is None else _chosen(leaf, method, values)

    def routes(self) -> list[tuple[str, str]]:
        """Every method and pattern, for documents that list them."""
        return sorted(self._listed)

    @property
    def _listed(self) -> list[tuple[str, str]]:
        found = [(method, path) for path, leaf in self._exact.items() for method in leaf.methods]
        pending: list[tuple[str, _Node[H]]] = [("", self._root)]
        while pending:
            path, node = pending.pop()
            for leaf, shown in ((node.leaf, path), (node.rest, f"{path}/{{*}}")):
                for method, (_, names) in (leaf.methods if leaf else {}).items():
                    found.append((method, _named(shown, names)))
            pending += [(f"{path}/{part}", child) for part, child in node.parts.items()]
            if node.any_part is not None:
                pending.append((f"{path}/{{}}", node.any_part))
        return found

    def _leaf_of(self, pattern: str) -> _Leaf[H]:
        parts = pattern.split("/")[1:]
        if not any(map(_is_name, parts)):
            return self._exact.setdefault(pattern, _Leaf())
        node = self._root
        for part in parts:
            if part.endswith("*}"):
                node.rest = node.rest or _Leaf()
                return node.rest
            if _is_name(part):
                node.any_part = node.any_part or _Node()
                node = node.any_part
            else:
                node = node.parts.setdefault(part, _Node())
        node.leaf = node.leaf or _Leaf()
        return node.leaf

    def _walk(
        self, node: _Node[H], parts: list[str], at: int, values: list[str]
    ) -> _Leaf[H] | None:
        """Depth first, literal parts before names; ``values`` holds what the names stand for."""
        if at == len(parts):
            return node.leaf
        part = parts[at]
        child = node.parts.get(part)
        if child is not None and (leaf := self._walk(child, parts, at + 1, values)) is not None:
            return leaf
        if node.any_part is not None and part:
            values.append(unquote(part))
            if (leaf := self._walk(node.any_part, parts, at + 1, values)) is not None:
                return leaf
            values.pop()
        if node.rest is not None and part:
            values.append(unquote("/".join(parts[at:])))
            return node.rest
        return None


def _is_name(part: str) -> bool:
    return part.startswith("{") and part.endswith("}")


def _chosen(leaf: _Leaf[H], method: str, values: list[str]) -> Found[H] | WrongMethod:
    held = leaf.methods.get(method)
    if held is None and method == "HEAD":
        held = leaf.methods.get("GET")
    if held is None:
        return WrongMethod(tuple(sorted(leaf.methods)))
    handler, names = held
    return Found(handler, dict(zip(names, values, strict=True)))


def _named(shown: str, names: tuple[str, ...]) -> str:
    left = list(names)
    parts = []
    for part in shown.split("/"):
        if part in ("{}", "{*}"):
            name = left.pop(0)
            parts.append(f"{{{name}*}}" if part == "{*}" else f"{{{name}}}")
        else:
            parts.append(part)
    return "/".join(parts)
