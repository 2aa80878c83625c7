"""What can be set. Sections are frozen Structs; each protocol room brings its own.

Descriptions and bounds stand beside the fields, because the reference page, the messages about
bad values and ``penstock config show`` are all made from them. Secrets never show in a ``repr``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from penstock.protocols.natq.options import NatqOptions
from penstock.protocols.ojs.options import OjsOptions
from penstock.protocols.omniq.options import OmniqOptions
from penstock.settings.secrets import shown

__all__ = [
    "HttpSettings",
    "LogSettings",
    "NatsSettings",
    "RedisSettings",
    "Section",
    "Settings",
    "WorkerSettings",
]

_SECRET = Meta(extra={"secret": True})
_PATH = Meta(extra={"path": True})  # relative to the file that says it
_AtLeastOne = Annotated[int, Meta(ge=1)]


class Section(Struct, frozen=True, kw_only=True):
    """A group of settings that hides its secrets when printed."""

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self._shown())
        return f"{type(self).__name__}({inside})"

    def __rich_repr__(self) -> Any:
        yield from self._shown()

    def _shown(self) -> list[tuple[str, Any]]:
        infos = msgspec.structs.fields(type(self))
        return [(i.name, shown(getattr(self, i.name), i.type)) for i in infos]


class NatsSettings(Section, frozen=True, kw_only=True):
    """How to reach NATS."""

    url: Annotated[
        str,
        Meta(
            description="Address of a server or, with commas, of a cluster. "
            "Empty or `embedded`: Penstock starts a server of its own."
        ),
    ] = ""
    name: Annotated[str, Meta(description="Name of the connection, as the server shows it.")] = (
        "penstock"
    )
    user: Annotated[str | None, Meta(description="User name.")] = None
    password: Annotated[str | None, Meta(description="Password of the user."), _SECRET] = None
    token: Annotated[str | None, Meta(description="Instead of user and password."), _SECRET] = None
    creds: Annotated[str | None, Meta(description="Credentials file (JWT and seed)."), _PATH] = None
    nkey: Annotated[str | None, Meta(description="File with an nkey seed."), _PATH] = None
    tls_ca: Annotated[
        str | None, Meta(description="Certificates that the server's is checked against."), _PATH
    ] = None
    tls_cert: Annotated[str | None, Meta(description="Our own certificate."), _PATH] = None
    tls_key: Annotated[str | None, Meta(description="The key of our own certificate."), _PATH] = (
        None
    )
    server_binary: Annotated[
        str | None,
        Meta(description="The nats-server program to embed; found by itself if unset."),
        _PATH,
    ] = None


class RedisSettings(Section, frozen=True, kw_only=True):
    """How to reach Redis, which only OmniQ needs."""

    url: Annotated[
        str,
        Meta(description="Address. Empty or `embedded`: Penstock starts a Redis of its own."),
    ] = ""


class WorkerSettings(Section, frozen=True, kw_only=True):
    """How a worker runs handlers."""

    concurrency: Annotated[int, Meta(ge=1, description="Handlers at once, per process.")] = 64
    processes: Annotated[int, Meta(ge=1, description="Worker processes.")] = 1
    threads: Annotated[
        _AtLeastOne | None,
        Meta(description="Threads for plain `def` handlers. Unset: as concurrency."),
    ] = None
    cpu_processes: Annotated[
        _AtLeastOne | None,
        Meta(description="Processes for `cpu=True` handlers. Unset: one per core."),
    ] = None
    grace: Annotated[
        timedelta,
        Meta(description="How long a stopping worker lets handlers finish before it gives back."),
    ] = timedelta(seconds=30)
    max_jobs: Annotated[
        _AtLeastOne | None,
        Meta(description="After so many jobs a process is replaced by a fresh one."),
    ] = None
    max_rss_mb: Annotated[
        _AtLeastOne | None, Meta(description="Above this memory, in MB, a process is replaced.")
    ] = None
    block_after: Annotated[
        timedelta,
        Meta(description="A handler that blocks the event loop for longer is named in the log."),
    ] = timedelta(milliseconds=250)
    health: Annotated[
        str,
        Meta(
            description="Where /health, /ready and /metrics answer: a port of this machine "
            "(`8081`) or `0.0.0.0:8081`. The second of several processes answers one port above, "
            "and so on. Empty: nowhere."
        ),
    ] = ""
    health_token: Annotated[
        str | None,
        Meta(
            description="Bearer token for metrics and reasons; without one other machines are "
            "told the status alone."
        ),
        _SECRET,
    ] = None
    uvloop: Annotated[bool, Meta(description="Use uvloop where it is installed.")] = True


class HttpSettings(Section, frozen=True, kw_only=True):
    """Where the HTTP faces listen."""

    bind: Annotated[str, Meta(description="Address and port.")] = "127.0.0.1:8080"
    token: Annotated[
        str | None,
        Meta(
            description="Bearer token that allows everything; some token is needed for any "
            "address but loopback."
        ),
        _SECRET,
    ] = None
    operate_token: Annotated[
        str | None, Meta(description="Bearer token for producers and workers."), _SECRET
    ] = None
    view_token: Annotated[
        str | None, Meta(description="Bearer token that allows to look."), _SECRET
    ] = None
    linger: Annotated[
        timedelta,
        Meta(
            description="How long a stopping server goes on answering while `/ready` says no, "
            "for load balancers to notice."
        ),
    ] = timedelta(0)
    tls_cert: Annotated[str | None, Meta(description="Certificate to serve https."), _PATH] = None
    tls_key: Annotated[str | None, Meta(description="The certificate's key."), _PATH] = None
    schemas: Annotated[
        Literal["off", "warn", "strict"],
        Meta(description="What to do with arguments that miss the schema of their job type."),
    ] = "warn"


class LogSettings(Section, frozen=True, kw_only=True):
    """What is logged, on stderr."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="The least that is logged.")
    ] = "info"
    format: Annotated[
        Literal["auto", "text", "json"],
        Meta(description="`auto` is text on a terminal and JSON lines elsewhere."),
    ] = "auto"


class Settings(Section, frozen=True, kw_only=True):
    """Everything that can be set. A worker serves the protocols whose section is present."""

    data: Annotated[
        str,
        Meta(description="Folder of the embedded servers. Empty: a temporary one, removed at end."),
        _PATH,
    ] = ""
    events: Annotated[bool, Meta(description="Publish lifecycle events.")] = True
    nats: NatsSettings = NatsSettings()
    redis: RedisSettings = RedisSettings()
    worker: WorkerSettings = WorkerSettings()
    http: HttpSettings = HttpSettings()
    log: LogSettings = LogSettings()
    natq: NatqOptions = NatqOptions()
    ojs: OjsOptions = OjsOptions()
    omniq: OmniqOptions = OmniqOptions()
