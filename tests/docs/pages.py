"""The pages of the documentation, cut into fenced blocks, links and the words in backticks.

A block may be preceded by a marker on a line of its own, ``<!-- not run: why -->``: it is shown
and not executed. A reason is needed, and `MAX_NOT_RUN` of them are allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MAX_NOT_RUN", "PAGES", "ROOT", "Block", "Page", "page_of"]

ROOT = Path(__file__).parents[2]
MAX_NOT_RUN = 12

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>[\w-]*)")
_MARKER = re.compile(r"<!-- not run: *(?P<reason>.*?) *-->")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_HEADING = re.compile(r"^#+ +(.*?)\s*$")
_NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, its text, and why it is not run, if it is not."""

    page: str
    line: int
    language: str
    text: str
    not_run: str | None = None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Page:
    """One page; ``prose`` is its text with the blocks blanked out, line for line."""

    path: Path
    blocks: tuple[Block, ...]
    prose: tuple[str, ...]

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT)) if self.path.is_relative_to(ROOT) else "page.md"

    def links(self) -> Iterator[tuple[int, str]]:
        """Line and target of every link."""
        for line, text in enumerate(self.prose, 1):
            yield from ((line, found["target"]) for found in _LINK.finditer(_CODE.sub("", text)))

    def spans(self) -> Iterator[tuple[int, str]]:
        """Line and text of everything in single backticks."""
        for line, text in enumerate(self.prose, 1):
            yield from ((line, found[1]) for found in _CODE.finditer(text))

    def anchors(self) -> set[str]:
        """What ``#…`` links into this page may say."""
        headings = (_HEADING.match(text) for text in self.prose)
        return {_anchor(found[1]) for found in headings if found}


def page_of(path: Path) -> Page:
    """The page at ``path``. An unclosed fence is an error."""
    lines = path.read_text("utf-8").splitlines()
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else "page.md"
    blocks: list[Block] = []
    prose: list[str] = []
    inside: re.Match[str] | None = None
    began, text, reason = 0, list[str](), None
    for number, line in enumerate(lines, 1):
        if inside is None:
            inside = _FENCE.match(line)
            began, text = number, []
            if marker := _MARKER.search(line):
                reason = marker["reason"]
            elif inside is None and line.strip():
                reason = None  # the marker is for the block right below it
        elif line.strip() == inside["ticks"]:
            body = "\n".join(one.removeprefix(inside["indent"]) for one in text)
            blocks.append(Block(name, began, inside["language"], f"{body}\n", reason))
            inside, reason = None, None
            prose.append("")
            continue
        else:
            text.append(line)
        prose.append("" if inside else line)
    if inside is not None:
        raise ValueError(f"{name}:{began}: this block is never closed")
    return Page(path, tuple(blocks), tuple(prose))


def _anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    plain = _LINK.sub(lambda found: found[0][1 : found[0].index("]")], heading)
    return _NOT_IN_ANCHORS.sub("", plain.lower()).replace(" ", "-")


def _pages() -> Iterator[Page]:
    for path in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]:
        yield page_of(path)


PAGES = tuple(_pages())
