"""The `penstock` command. Starting it costs little: each command imports what it needs when run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with one of the codes in `penstock.cli.exits`."""
    _open_what_is_closed()
    try:
        _run(arguments)
    except KeyboardInterrupt:  # so early or late that no command was there to hear it
        sys.exit(130)


def _run(arguments: Sequence[str] | None) -> None:
    try:
        from penstock.cli.root import root
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f"penstock: the command line needs {error.name}: pip install 'penstock[cli]'")
    from penstock.cli.exits import run

    sys.exit(run(root, arguments))


def _open_what_is_closed() -> None:
    """Give ``penstock version >&-`` somewhere to write, before a socket gets that number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - kept open
