"""The `penstock` command. Starting it costs little: each command imports what it needs when run."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with one of the codes in `penstock.cli.exits`."""
    try:
        from penstock.cli.root import root
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f"penstock: the command line needs {error.name}: pip install 'penstock[cli]'")
    from penstock.cli.exits import run

    sys.exit(run(root, arguments))
