"""The runtime is blind: it never asks which protocol it serves."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import penstock.runtime
from penstock.core.invocation import PROTOCOLS

FOLDER = Path(penstock.runtime.__path__[0])


def decisions(source: str) -> Iterator[int]:
    """Lines on which something is decided by a protocol's name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Compare, ast.Match, ast.IfExp, ast.If)):
            asked = node.subject if isinstance(node, ast.Match) else node
            about = asked.test if isinstance(asked, (ast.If, ast.IfExp)) else asked
            for part in ast.walk(about):
                named = getattr(part, "attr", getattr(part, "id", getattr(part, "value", None)))
                if named == "protocol" or (isinstance(named, str) and named in PROTOCOLS):
                    yield node.lineno


def test_the_check_itself_sees_a_decision() -> None:
    assert list(decisions("if job.protocol == 'natq': pass"))
    assert list(decisions("match of.protocol:\n case _: pass"))
    assert list(decisions("x = 1 if name in ('ojs', 'omniq') else 2"))


def test_nothing_in_the_runtime_depends_on_the_protocol() -> None:
    found = [
        f"{path.name}:{line}"
        for path in sorted(FOLDER.rglob("*.py"))
        for line in decisions(path.read_text("utf-8"))
    ]

    assert found == []
