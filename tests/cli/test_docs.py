"""The reference pages say what the commands and settings are today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_reference_pages_are_current() -> None:
    command = [sys.executable, "scripts/gen_cli_docs.py", "--check"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, f"{done.stderr}: run python scripts/gen_cli_docs.py"
