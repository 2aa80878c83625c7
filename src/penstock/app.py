"""The façade: declare tasks, connect, enqueue, serve. What most users ever import.

It stands above everything and imports lazily: declaring tasks loads no broker, enqueueing
loads no runtime. Without an address a NATS server of our own is started and goes with us.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, cast, overload

from penstock.core.errors import ConfigError, UnknownName, nearest
from penstock.core.ids import uuid7
from penstock.core.invocation import MISSING
from penstock.core.registry import Registry
from penstock.core.task import DEFAULT_NAME, InputShape, Task
from penstock.hall import Hall, check_protocols, door
from penstock.hall import open_admin as _open_admin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.bulk import BulkReport
    from penstock.broker.link import Link
    from penstock.core.admin import Admin, WorkView
    from penstock.core.events import EventSink
    from penstock.core.invocation import ProtocolName
    from penstock.core.policy import Backoff, RetryPolicy
    from penstock.protocols.natq.client import Job, NatqClient, Run
    from penstock.protocols.natq.wire import Output, TaskDefinition
    from penstock.runtime.worker import Worker
    from penstock.settings import Settings

__all__ = ["App", "Client", "connect", "open_admin", "open_link", "serve"]

Handler = TypeVar("Handler", bound="Callable[..., Any]")

EMBEDDED = "embedded"


class TaskOptions(TypedDict, total=False):
    """What ``@app.task(…)`` takes; see `Registry.add` for what each means."""

    name: str
    names: Mapping[str, str]
    retries: int
    retry: RetryPolicy
    backoff: Backoff
    timeout: timedelta | float | str
    reply: bool
    cpu: bool
    concurrency: int
    queue: str
    input: InputShape
    meta: Mapping[str, Any]


class App:
    """Tasks under one name. The decorated functions stay ordinary functions."""

    def __init__(self, name: str) -> None:
        if not DEFAULT_NAME.fullmatch(str(name)):
            raise ConfigError(
                f"{name!r} cannot be the name of an application",
                remedy="use lower-case letters, digits, _ and -, starting with a letter",
                code="app.name",
            )
        self.name = name
        self.registry = Registry()

    def __repr__(self) -> str:
        return f"App({self.name!r}, {len(self.registry)} tasks)"

    @overload
    def task(self, fn: Handler, /) -> Handler: ...
    @overload
    def task(self, **options: Unpack[TaskOptions]) -> Callable[[Handler], Handler]: ...
    def task(self, fn: Any = None, **options: Any) -> Any:
        """Declare a handler. Usable bare or with options.

        ``retries=N``: at most N + 1 executions, where the wire does not carry a policy of
        its own. ``reply=True``: callers wait for the answer (natq request/reply).
        ``cpu=True``: runs in another process. ``names``: another name per protocol.
        """
        _check_options(options)
        if fn is not None:
            self.registry.add(fn, **options)
            return fn

        def declare(handler: Handler) -> Handler:
            self.registry.add(handler, **options)
            return handler

        return declare

    def connect(self, url: str | None = None, *, settings: Settings | None = None) -> Connection:
        """A producer that knows these tasks: ``async with app.connect() as client``."""
        return Connection(url, settings, self)

    @asynccontextmanager
    async def running(
        self,
        url: str | None = None,
        *,
        settings: Settings | None = None,
        protocols: Sequence[str] = ("natq",),
    ) -> AsyncIterator[Client]:
        """Serve every task in this process and give a client: the whole thing in one file."""
        chosen = _settings(url, settings)
        async with AsyncExitStack() as stack:
            hall = Hall(chosen, stack, open_link, uuid7())
            worker = await _worker(self, hall, chosen, protocols)
            await worker.start()
            stack.push_async_callback(worker.stop)
            yield await Client.open(await hall.link(), chosen, self)


def _check_options(given: Mapping[str, Any]) -> None:
    """Refuse an option that ``@app.task`` does not have, naming the nearest."""
    known = TaskOptions.__annotations__
    for name in given:
        if name not in known:
            near = nearest(name, known)
            raise ConfigError(
                f"@app.task has no option {name!r}",
                remedy=f"did you mean {near!r}?" if near else f"it has {', '.join(known)}",
                code="task.option",
            )


class Client:
    """What producers do. Tasks are given as functions of the app or by name."""

    def __init__(self, natq: NatqClient, settings: Settings, app: App | None) -> None:
        self.natq = natq
        self._settings = settings
        self._app = app

    @classmethod
    async def open(cls, link: Link, settings: Settings, app: App | None = None) -> Client:
        from penstock.protocols.natq.client import NatqClient

        return cls(await NatqClient.open(link, settings.natq), settings, app)

    async def tasks(self) -> dict[str, TaskDefinition]:
        """Every task that some worker has announced."""
        return await self.natq.tasks()

    async def call(
        self,
        task: str | Callable[..., Any],
        body: Any = MISSING,
        /,
        *,
        timeout: float = 30.0,
        **arguments: Any,
    ) -> Any:
        """Ask a task declared with ``reply=True`` and wait for its answer.

        The input is given as keyword arguments, or whole as ``body``. Raises `TaskFailed`.
        """
        name, payload = self._input(task, body, arguments)
        return await self.natq.call(name, payload, timeout=timeout)

    async def enqueue(
        self,
        task: str | Callable[..., Any],
        body: Any = MISSING,
        /,
        *,
        run_id: str | None = None,
        drop_result: bool = False,
        **arguments: Any,
    ) -> Run:
        """Put a job in the queue; it is stored when this returns.

        The same ``run_id`` twice is one job. ``drop_result`` keeps no result on success.
        """
        name, payload = self._input(task, body, arguments)
        return await self.natq.enqueue(name, payload, run_id=run_id, drop_result=drop_result)

    async def enqueue_many(
        self, jobs: Iterable[Job] | AsyncIterable[Job], *, window: int = 1024
    ) -> BulkReport:
        """Put any number of jobs in the queue, in bounded memory; each is a `penstock.Job`.

        At most ``window`` are unconfirmed at a time. The report counts what was stored and
        what was there before, and names each job that is not certainly in the queue. One
        whose input does not fit is counted as refused and does not stop the others.
        """
        return await self.natq.enqueue_many(jobs, window=window, prepare=self._prepared)

    async def result(self, task: str, run_id: str, timeout: float | None = None) -> Any:
        """What a run returned, waiting for it. Raises `TaskFailed` or `Waited`."""
        return await self.natq.result(task, run_id, timeout)

    async def status(self, task: str, run_id: str) -> Output | None:
        """The record of a run as it stands."""
        return await self.natq.status(task, run_id)

    def watch(self, task: str = "") -> AsyncIterator[WorkView]:
        """Every change of a run's record, of one task or all, from now on."""
        return self.admin("natq").watch(name=task)

    def admin(self, protocol: str = "natq") -> Admin:
        """The operator's door of a protocol."""
        if protocol != "natq":
            raise UnknownName("protocol", protocol, ["natq"])
        from penstock.protocols.natq.admin import NatqAdmin

        return NatqAdmin(self.natq.room)

    def _input(
        self, task: str | Callable[..., Any], body: Any, arguments: dict[str, Any]
    ) -> tuple[str, Any]:
        """The wire name and body; checked against the signature where the app knows it."""
        if body is not MISSING and arguments:
            raise ConfigError(
                "an input is given both whole and as keyword arguments", remedy="give one of them"
            )
        known = self._known(task)
        if known is None:
            return str(task), arguments or body
        if body is not MISSING:
            from penstock.protocols.natq.wire import without_reserved

            known.binding.bind(without_reserved(body))
            return known.name_on("natq"), body
        return known.name_on("natq"), known.binding.body_of((), arguments)

    def _prepared(self, job: Job) -> Job:
        known = self._known(job.task)
        if known is None:
            return job
        from penstock.protocols.natq.wire import without_reserved

        known.binding.bind(without_reserved(job.body))
        return job._replace(task=known.name_on("natq"))

    def _known(self, task: str | Callable[..., Any]) -> Task | None:
        if isinstance(task, str):
            if self._app is None or task not in self._app.registry:
                return None
            return self._app.registry.get(task)
        if self._app is None:
            raise ConfigError(
                "this client does not know which task a function is",
                remedy="connect with app.connect(), or name the task",
            )
        return self._app.registry.of(task)


class Connection:
    """A client for as long as the ``async with`` lasts."""

    def __init__(self, url: str | None, settings: Settings | None, app: App | None = None) -> None:
        self._url = url
        self._settings = settings
        self._app = app
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Client:
        settings = _settings(self._url, self._settings)
        async with AsyncExitStack() as stack:
            link = await stack.enter_async_context(open_link(settings))
            client = await Client.open(link, settings, self._app)
            self._stack = stack.pop_all()
        return client

    async def __aexit__(self, *exit_: object) -> None:
        await self._stack.aclose()


def connect(url: str | None = None, *, settings: Settings | None = None) -> Connection:
    """A producer: ``async with penstock.connect() as client``.

    The address comes from ``url``, else from the settings (file, ``PENSTOCK_NATS_URL``,
    ``NATS_URL``); without one a server of our own is started for as long as it lasts.
    """
    return Connection(url, settings)


@asynccontextmanager
async def open_link(settings: Settings) -> AsyncIterator[Link]:
    """A connection as the settings say, with a server of our own behind it if they name none."""
    from penstock.broker.binary import check_server
    from penstock.broker.embedded import EmbeddedNats
    from penstock.broker.link import Link

    async with AsyncExitStack() as stack:
        url = settings.nats.url
        if url in ("", EMBEDDED):
            store = Path(settings.data) / "nats" if settings.data else None
            server = EmbeddedNats(store, binary=settings.nats.server_binary)
            url = (await stack.enter_async_context(server)).url
        link = await Link.open(_nats_options(url, settings))
        stack.push_async_callback(link.close)
        await check_server(link)
        yield link


def open_admin(protocol: str, settings: Settings) -> AbstractAsyncContextManager[Admin]:
    """The operator's door of one protocol, on the broker that it needs and no other."""
    return _open_admin(protocol, settings, open_link)


async def serve(
    app: App,
    settings: Settings,
    protocols: Sequence[str],
    *,
    ready: Callable[[Sequence[str]], None] | None = None,
) -> int:
    """Serve the application's tasks until a signal says stop; the exit code of the process."""
    if not len(app.registry):
        raise ConfigError(
            f"the application {app.name!r} declares no tasks",
            remedy="decorate a function with @app.task",
        )
    from penstock.runtime.options import ExitCode
    from penstock.runtime.signals import StopSignals

    async with AsyncExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        started = await signals.unless_heard(_started(app, settings, protocols, stack))
        if started is None:
            return ExitCode.CLEAN  # told to stop before anything was taken
        worker, addresses = started
        if ready is not None:
            ready(addresses)
        return await worker.run(signals)


async def _started(
    app: App, settings: Settings, protocols: Sequence[str], stack: AsyncExitStack
) -> tuple[Worker, Sequence[str]]:
    hall = Hall(settings, stack, open_link, uuid7())
    worker = await _worker(app, hall, settings, protocols)
    try:
        await worker.start()
    except BaseException:
        await worker.stop(timedelta(0))  # gives back what it may have taken already
        raise
    return worker, hall.addresses


async def _worker(app: App, hall: Hall, settings: Settings, protocols: Sequence[str]) -> Worker:
    """A worker for ``protocols``, prepared on the servers but not started."""
    from penstock.runtime.worker import Worker

    check_protocols(protocols)
    served = [await door(protocol)[0](hall, app.registry) for protocol in protocols]
    return Worker(
        {task.name: task for task in app.registry},
        [source for one in served for source in one.sources],
        [request for one in served for request in one.requests],
        options=_worker_options(settings),
        sink=await _sink(hall, settings),
        worker_id=hall.worker_id,
        protocols=cast("Sequence[ProtocolName]", protocols),
    )


def _worker_options(settings: Settings) -> Any:
    from penstock.runtime.options import WorkerOptions

    chosen = settings.worker
    return WorkerOptions(
        concurrency=chosen.concurrency,
        requests=settings.natq.max_requests,
        grace=chosen.grace,
        max_jobs=chosen.max_jobs,
        max_rss_mb=chosen.max_rss_mb,
        threads=chosen.threads,
        processes=chosen.cpu_processes,
        block_after=chosen.block_after,
        health=chosen.health or None,
        health_token=chosen.health_token,
    )


async def _sink(hall: Hall, settings: Settings) -> EventSink:
    """Lifecycle events go to NATS; work on another broker starts no server only for them."""
    if not settings.events or not hall.has_nats:
        from penstock.core.events import Silent

        return Silent()
    from penstock.broker.event_stream import EventStream

    return await EventStream.open(await hall.link(), replicas=settings.natq.replicas)


def _nats_options(url: str, settings: Settings) -> Any:
    from penstock.broker.options import NatsOptions

    nats = settings.nats
    given = {
        "name": nats.name,
        "user": nats.user,
        "password": nats.password,
        "token": nats.token,
        "creds_file": nats.creds,
        "nkey_seed_file": nats.nkey,
        "tls_ca": nats.tls_ca,
        "tls_cert": nats.tls_cert,
        "tls_key": nats.tls_key,
    }
    return NatsOptions.from_url(url, **{k: v for k, v in given.items() if v is not None})


def _settings(url: str | None, settings: Settings | None) -> Settings:
    from penstock.settings import load_settings

    chosen = settings if settings is not None else load_settings().settings
    if url is None:
        return chosen
    import msgspec

    return msgspec.structs.replace(chosen, nats=msgspec.structs.replace(chosen.nats, url=url))
