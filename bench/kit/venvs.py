"""Environments for peers: made once per set of packages, by name from the registry, never ours."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["Unavailable", "python_for"]

_INSTALL_WITHIN_S = 300


class Unavailable(Exception):
    """A peer cannot run here; the message says why."""


def python_for(packages: tuple[str, ...]) -> str:
    """The interpreter to run a contender with. Raises `Unavailable`."""
    if not packages:
        return sys.executable
    name = hashlib.sha256("\n".join((sys.version, *sorted(packages))).encode()).hexdigest()[:16]
    folder = _cache() / name
    python = folder / "bin" / "python"
    if (folder / "ready").exists():
        return str(python)
    shutil.rmtree(folder, ignore_errors=True)
    uv = Path(sys.executable).with_name("uv")
    _run(str(uv), "venv", "--quiet", "--python", sys.executable, str(folder))
    _run(str(uv), "pip", "install", "--quiet", "--python", str(python), *packages)
    (folder / "ready").touch()
    return str(python)


def _cache() -> Path:
    root = Path(os.environ.get("PENSTOCK_BENCH_CACHE", ".penstock/bench"))
    root.mkdir(parents=True, exist_ok=True)
    return root.resolve()


def _run(*command: str) -> None:
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(str(error)) from error
    if ran.returncode:
        lines = (ran.stderr or ran.stdout).strip().splitlines()
        raise Unavailable(lines[-1] if lines else f"{command[0]} failed")
