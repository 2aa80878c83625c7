"""Lua scripts: put together from small commented parts, called by their SHA, never lost.

The first line of a script may name the parts it stands on (``-- needs: base lanes``); a part
is a file whose name starts with an underscore and is included once, in the order given. A
server that forgot a script (a flush, a failover, a new cluster node) is sent its text
again, unnoticed by the caller: a script that was not found did nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files

from penstock.broker.redis_port import RedisPort, SyncRedisPort
from penstock.broker.resp import Arg, RedisRefused, Reply
from penstock.core.errors import ConfigError

__all__ = ["Script", "load_script", "run_script", "run_script_sync"]


@dataclass(frozen=True, slots=True)
class Script:
    """One complete Lua text and the name that Redis gives it."""

    name: str
    source: str = field(repr=False)
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha", sha)


def load_script(package: str, name: str, swap: Mapping[str, str] | None = None) -> Script:
    """The script ``lua/{name}.lua`` of a package with its parts.

    ``swap`` exchanges a part for another of the same shape (``{"mirror": "mirror_v4"}``).
    """
    folder = files(package) / "lua"
    body = (folder / f"{name}.lua").read_text("utf-8")
    pieces = [_part(package, swap.get(part, part) if swap else part) for part in _needs(body)]
    return Script(name, "\n".join([*pieces, body]))


async def run_script(port: RedisPort, script: Script, key: Arg, args: tuple[Arg, ...]) -> Reply:
    """Run ``script`` on the slot of ``key``."""
    try:
        return await port.execute("EVALSHA", script.sha, "1", key, *args)
    except RedisRefused as refused:
        if refused.kind != "NOSCRIPT":
            raise
    return await port.execute("EVAL", script.source, "1", key, *args)


def run_script_sync(port: SyncRedisPort, script: Script, key: Arg, args: tuple[Arg, ...]) -> Reply:
    """As `run_script`, for threads."""
    try:
        return port.execute("EVALSHA", script.sha, "1", key, *args)
    except RedisRefused as refused:
        if refused.kind != "NOSCRIPT":
            raise
    return port.execute("EVAL", script.source, "1", key, *args)


def _needs(body: str) -> list[str]:
    first = body.split("\n", 1)[0]
    return first.removeprefix("-- needs:").split() if first.startswith("-- needs:") else []


def _part(package: str, name: str) -> str:
    try:
        return (files(package) / "lua" / f"_{name}.lua").read_text("utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"{package} has no Lua part {name!r}") from error
