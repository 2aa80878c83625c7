"""``penstock doctor``: what Penstock needs, looked at one by one, each with a remedy."""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from penstock.cli.exits import Exit
from penstock.cli.options import configured
from penstock.cli.output import print_json, styled
from penstock.cli.remote import DEFAULT_DATA, found_dev_server, run_async, settings_at
from penstock.cli.root import COMMANDS
from penstock.core.errors import PenstockError
from penstock.core.events import now_utc
from penstock.settings import Loaded, Settings

if TYPE_CHECKING:
    from penstock.broker.link import Link

__all__ = ["Check", "doctor"]

State = Literal["ok", "note", "bad"]
_MARKS = {"ok": ("ok  ", "green"), "note": ("note", "yellow"), "bad": ("BAD ", "red")}
_REDIS_WITHIN_S = 5.0
_MAX_SKEW_S = 1.0  # leases and schedules are judged by several clocks
_EXTRAS = {
    "schema": "jsonschema_rs",
    "redis": "redis",
    "server": "granian",
    "metrics": "prometheus_client",
    "tracing": "opentelemetry",
    "pydantic": "pydantic",
}


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at, what was found, and what to do about it."""

    what: str
    state: State
    found: str
    remedy: str = ""


@click.command(short_help=COMMANDS["doctor"])
@click.option("--json", "as_json", is_flag=True, help="JSON for programs.")
@configured
def doctor(loaded: Loaded, as_json: bool) -> int:
    """Check what Penstock needs on this machine; exit code 3 when something is missing."""

    async def look() -> list[Check]:
        found = []
        async for check in _checks(loaded):
            found.append(check)
            if not as_json:
                _show(check)
        return found

    checks = run_async(look())
    if as_json:
        print_json(checks)
    return Exit.ENVIRONMENT if any(check.state == "bad" for check in checks) else Exit.OK


def _show(check: Check) -> None:
    mark, colour = _MARKS[check.state]
    click.echo(f"{styled(mark, fg=colour)}  {check.what}: {check.found}")
    if check.remedy:
        click.echo(f"      try: {check.remedy}")


async def _checks(loaded: Loaded) -> AsyncIterator[Check]:
    settings = loaded.settings
    yield _python()
    yield _settings(loaded)
    yield await _guarded("nats-server", lambda: _binary(settings))
    yield await _guarded("embedded server", lambda: _embedded(settings))
    async for check in _remote(settings):
        yield check
    yield await _guarded("Redis", lambda: _redis(loaded))
    yield _data_folder(Path(settings.data or DEFAULT_DATA))
    for extra, module in _EXTRAS.items():
        yield _extra(extra, module)


async def _guarded(what: str, look: Callable[[], Awaitable[Check]]) -> Check:
    """What ``look`` finds; an error is a finding too."""
    try:
        return await look()
    except PenstockError as error:
        return Check(what, "bad", error.message, error.remedy)
    except OSError as error:
        return Check(what, "bad", str(error))


def _python() -> Check:
    """Older ones than we need cannot even be installed on, so this only tells."""
    return Check("Python", "ok", f"{platform.python_version()} at {sys.executable}")


def _settings(loaded: Loaded) -> Check:
    place = str(loaded.file) if loaded.file else "no file"
    changed = sum(origin != "default" for origin in loaded.origins.values())
    found = f"{place}, {changed} not default"
    if loaded.ignored:
        return Check("settings", "note", found, f"nobody reads {', '.join(loaded.ignored)}")
    return Check("settings", "ok", found)


async def _binary(settings: Settings) -> Check:
    from penstock.broker.binary import find_nats_server, version_of

    path = find_nats_server(settings.nats.server_binary)
    return Check("nats-server", "ok", f"{version_of(path)} at {path}")


async def _embedded(settings: Settings) -> Check:
    from penstock.broker.embedded import EmbeddedNats

    began = time.perf_counter()
    async with EmbeddedNats(binary=settings.nats.server_binary):
        took_ms = (time.perf_counter() - began) * 1000
    return Check("embedded server", "ok", f"JetStream was ready after {took_ms:.0f} ms")


async def _remote(settings: Settings) -> AsyncIterator[Check]:
    """The configured server: reachable, new enough, and with the same idea of the time."""
    url = settings.nats.url or found_dev_server(settings)
    if not url:
        yield Check("NATS", "ok", "no address is configured; an embedded server is used")
        return
    from penstock.app import open_link
    from penstock.broker.binary import check_server

    try:
        async with open_link(settings_at(settings, url)) as link:
            began = time.perf_counter()
            server = await check_server(link)
            took_ms = (time.perf_counter() - began) * 1000
            facts = (
                f"{server.version}, JetStream API level {server.api_level}, {took_ms:.1f} ms away"
            )
            yield Check("NATS", "ok", facts)
            yield await _guarded("clocks", lambda: _clocks(link))
    except PenstockError as error:
        yield Check("NATS", "bad", error.message, error.remedy)


async def _clocks(link: Link) -> Check:
    """How far the server's clock is from ours, as its own description of a stream tells."""
    before = now_utc()
    reply = await link.request(b"$JS.API.STREAM.LIST", b'{"offset":0}')
    after = now_utc()
    streams = msgspec.json.decode(reply.payload).get("streams") or []
    if not streams or "ts" not in streams[0]:
        return Check("clocks", "note", "cannot be compared before there is a stream")
    theirs = msgspec.convert(streams[0]["ts"], datetime)
    middle = before + (after - before) / 2
    skew = (theirs - middle).total_seconds()
    if abs(skew) > _MAX_SKEW_S:
        return Check(
            "clocks", "bad", f"the server is {skew:+.1f} s off", "run NTP on both machines"
        )
    return Check("clocks", "ok", f"the server is {skew * 1000:+.0f} ms off")


async def _redis(loaded: Loaded) -> Check:
    """The configured Redis, or the one that OmniQ would embed; without OmniQ it may be missing."""
    from penstock.broker.redis_binary import find_redis_server, version_of

    settings = loaded.settings
    url = settings.redis.url or found_dev_server(settings, "redis")
    if url:
        return await _redis_at(url)
    try:
        path = find_redis_server()
    except PenstockError as error:
        state: State = "bad" if "omniq" in loaded.configured else "note"
        return Check("Redis", state, error.message, error.remedy)
    found = f"no address is configured; OmniQ embeds {version_of(path)} at {path}"
    return Check("Redis", "ok", found)


async def _redis_at(url: str) -> Check:
    from penstock.broker.redis_link import RedisLink
    from penstock.broker.redis_port import RedisTarget

    link = RedisLink(RedisTarget.from_url(url), connect_timeout=_REDIS_WITHIN_S)
    try:
        said = await link.execute("INFO", "server")
        began = time.perf_counter()
        await link.execute("PING")
        took_ms = (time.perf_counter() - began) * 1000
    finally:
        await link.aclose()
    version = re.search(rb"redis_version:(\S+)", said if isinstance(said, bytes) else b"")
    known = version[1].decode() if version else "of unknown version"
    return Check("Redis", "ok", f"{known}, {took_ms:.1f} ms away")


def _data_folder(folder: Path) -> Check:
    place = folder if folder.exists() else folder.resolve().parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        return Check(
            "data folder", "bad", f"{place}: {error.strerror}", "give --data another folder"
        )
    space = os.statvfs(place)
    free_gb = space.f_bavail * space.f_frsize / 1e9
    found = f"{folder} can be written, {free_gb:.1f} GB free"
    if free_gb < 1:
        return Check("data folder", "note", found, "JetStream refuses writes on a full disk")
    return Check("data folder", "ok", found)


def _extra(extra: str, module: str) -> Check:
    if find_spec(module) is not None:
        return Check(f"penstock[{extra}]", "ok", "installed")
    return Check(f"penstock[{extra}]", "note", "not installed", f"pip install 'penstock[{extra}]'")
