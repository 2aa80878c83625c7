"""A virtual environment for each pinned version of PyPI omniq, made at its first use.

The folder ``.venv-omniq-<version>`` in the project is kept for the next run. Several test
processes may ask at once: one installs, the others wait for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["VERSIONS", "RegistryUnreachable", "peer_python"]

VERSIONS = ("1.7.0", "4.0.0")
ROOT = Path(__file__).resolve().parents[3]
_UNREACHABLE = re.compile(
    r"error sending request|dns error|connection (refused|reset)|timed? ?out|network is unreachable"
    r"|client error \(connect\)|50[234] ",
    re.IGNORECASE,
)


class RegistryUnreachable(Exception):
    """The environment is not there and the package registry does not answer."""


def peer_python(version: str) -> Path:
    """The interpreter that has this omniq. Raises `RegistryUnreachable`, or what went wrong."""
    lock = ROOT / "locks" / f"omniq-{version}.txt"
    folder = ROOT / f".venv-omniq-{version}"
    python, stamp = folder / "bin" / "python", folder / ".ready"
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
    with (ROOT / f".venv-omniq-{version}.lock").open("w") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            _uv("venv", "--quiet", "--python", sys.executable, folder)
            _uv("pip", "install", "--quiet", "--python", python, "--require-hashes", "-r", lock)
            stamp.write_text(wanted)
    return python


def _uv(*args: str | Path) -> None:
    uv = Path(sys.executable).parent / "uv"
    done = subprocess.run(
        [uv, *args], capture_output=True, text=True, timeout=300, check=False, cwd=ROOT
    )
    if done.returncode == 0:
        return
    said = done.stderr.strip()
    if _UNREACHABLE.search(said):
        raise RegistryUnreachable(said.splitlines()[-1])
    raise AssertionError(f"uv {' '.join(map(str, args))} failed:\n{said}")
