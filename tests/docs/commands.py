"""A shell block as single commands, each with the output that the page says it has.

``sh`` and ``bash`` blocks are commands; in ``console`` blocks commands begin with ``$`` and what
follows is their output, where ``…`` stands for anything. ``# exit code 4`` at the end of a line
says that the command fails, and how.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.docs.pages import Block

__all__ = ["SHELLS", "Command", "commands_of", "mismatch"]

SHELLS = ("sh", "bash", "console")
_EXIT = re.compile(r"#\s*exit code (\d+)\s*$")
_RULE = re.compile("─+")
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")


@dataclass(frozen=True, slots=True)
class Command:
    """One command line. ``shown`` is the output on the page, ``None`` when there is none."""

    place: str
    text: str
    exit_code: int = 0
    shown: str | None = None


def commands_of(block: Block) -> Iterator[Command]:
    """The commands of a shell block, in order."""
    lines = list(enumerate(block.text.splitlines(), block.line + 1))
    while lines:
        number, line = lines.pop(0)
        if block.language == "console":
            if not line.startswith("$ "):
                raise ValueError(f"{block.page}:{number}: output without a command above it")
            line = line.removeprefix("$ ")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        text = _whole(line, lines)
        shown = _output(lines) if block.language == "console" else None
        code = _EXIT.search(text)
        yield Command(f"{block.page}:{number}", text, int(code[1]) if code else 0, shown)


def _whole(line: str, rest: list[tuple[int, str]]) -> str:
    """``line`` with the lines that continue it, taken from ``rest``."""
    text = line
    while text.endswith("\\") and rest:
        text += f"\n{rest.pop(0)[1].removeprefix('> ')}"
    if heredoc := _HEREDOC.search(text):
        while rest:
            text += f"\n{rest[0][1]}"
            if rest.pop(0)[1].strip() == heredoc[1]:
                break
    return text


def _output(rest: list[tuple[int, str]]) -> str | None:
    shown = []
    while rest and not rest[0][1].startswith("$ "):
        shown.append(rest.pop(0)[1].rstrip())
    text = "\n".join(shown).strip("\n")
    return text or None


def mismatch(shown: str, said: str) -> str | None:
    """Why ``said`` is not what the page shows, or ``None``. How wide a table is does not count."""
    pattern = ".*".join(re.escape(part) for part in _narrow(shown).split("…"))
    if re.fullmatch(pattern, _narrow(said), re.DOTALL):
        return None
    return f"the page shows:\n{shown}\nand it says:\n{said}"


def _narrow(text: str) -> str:
    lines = (_RULE.sub("─", " ".join(line.split())) for line in text.splitlines())
    return "\n".join(lines).strip("\n")
