"""Keep files and functions small enough to read: at most 500 and 60 lines."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["main", "oversized"]

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
FOLDERS = ("src", "tests", "bench", "examples", "scripts")


def main() -> int:
    """Name everything that is too long; the exit code is 1 if there is any."""
    root = Path(__file__).resolve().parent.parent
    found = [
        fault
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
        for fault in oversized(path.read_text("utf-8"), str(path.relative_to(root)))
    ]
    for fault in found:
        print(fault)
    return 1 if found else 0


def oversized(source: str, name: str) -> Iterator[str]:
    """One sentence for the file, and for each function in it, that is too long."""
    lines = source.count("\n")
    if lines > MAX_FILE_LINES:
        yield f"{name}: {lines} lines, at most {MAX_FILE_LINES}: look for the second idea in it"
    for node in ast.walk(ast.parse(source, name)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                where = f"{name}:{node.lineno}: {node.name}"
                yield f"{where} has {length} lines, at most {MAX_FUNCTION_LINES}"


if __name__ == "__main__":
    sys.exit(main())
