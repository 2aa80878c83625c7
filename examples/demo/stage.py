"""The stage: servers and worker processes of the demo's own, all gone when it is over.

Workers are the real ``penstock worker``, each a process. They hold the end of a pipe to this
one, so they stop even when the demo itself is killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from penstock.broker.embedded import EmbeddedNats
from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.cli.child import WorkerChild
from penstock.core.errors import Problem

__all__ = ["HiredWorker", "Stage"]

ROOT = Path(__file__).parents[2]
READY_WITHIN = 60.0
DRAINED_WITHIN = 60.0


class Stage:
    """NATS, Redis and workers. ``async with Stage() as stage``."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._workers: list[HiredWorker] = []
        self._nats: EmbeddedNats | None = None
        self._redis: EmbeddedRedis | None = None

    async def __aenter__(self) -> Stage:
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self._workers:
            await worker.dismiss()
        await self._stack.aclose()

    async def nats(self) -> EmbeddedNats:
        """The NATS server, started when an act first asks for it."""
        if self._nats is None:
            self._nats = await self._stack.enter_async_context(EmbeddedNats())
        return self._nats

    async def redis(self) -> EmbeddedRedis:
        """The Redis server, started when an act first asks for it."""
        if self._redis is None:
            self._redis = await self._stack.enter_async_context(EmbeddedRedis())
        return self._redis

    async def hire(self, *arguments: str, **environ: str) -> HiredWorker:
        """Another worker process, ready to work. Numbered in the order they came."""
        worker = HiredWorker(len(self._workers) + 1, arguments, _environ(environ))
        self._workers.append(worker)
        await worker.start()
        return worker


class HiredWorker:
    """One ``penstock worker …`` process."""

    def __init__(self, number: int, arguments: tuple[str, ...], environ: Mapping[str, str]) -> None:
        self.number = number
        self._child = WorkerChild(arguments, environ, stderr=asyncio.subprocess.PIPE)
        self._said: deque[str] = deque(maxlen=200)
        self._ready = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        return f"worker {self.number} (pid {self._child.process.pid})"

    async def start(self) -> None:
        """Return when it serves. Raises `Problem` with its own words when it does not."""
        await self._child.start()
        self._reading = asyncio.create_task(self._read(), name=f"demo:worker-{self.number}")
        try:
            async with asyncio.timeout(READY_WITHIN):
                await self._ready.wait()
        except TimeoutError:
            raise self._failed("was not ready in time") from None
        if not self._child.running:
            raise self._failed("ended at once")

    async def kill(self) -> None:
        """SIGKILL, and return when it is dead."""
        self._child.kill()
        await self._child.ended()

    async def drain(self) -> int | None:
        """SIGTERM, and its exit code once it has let handlers finish or given them back."""
        async with asyncio.timeout(DRAINED_WITHIN):
            return await self._child.drain()

    async def dismiss(self) -> None:
        """End it, however that has to be done."""
        if self._child.running:
            try:
                await self.drain()
            except TimeoutError:
                await self.kill()
        if self._reading is not None:
            await self._reading

    def last_words(self, lines: int = 12) -> str:
        return "\n".join(list(self._said)[-lines:])

    async def _read(self) -> None:
        stderr = self._child.process.stderr
        assert stderr is not None
        async for line in stderr:
            text = line.decode(errors="replace").rstrip()
            self._said.append(text)
            if text.startswith("serving "):
                self._ready.set()
        self._ready.set()  # nothing more will be said: it has ended

    def _failed(self, what: str) -> Problem:
        return Problem(f"{self} {what}:\n{self.last_words()}", remedy="penstock doctor")


def _environ(more: Mapping[str, str]) -> dict[str, str]:
    """Our environment without the settings of whoever runs the demo, and with the repository
    on the path."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "NATS_URL"))}
    path = os.pathsep.join(filter(None, (str(ROOT), kept.get("PYTHONPATH"))))
    return {**kept, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **more}


if sys.platform == "win32":  # pragma: no cover
    raise SystemExit("demo: the embedded servers need Linux or macOS")
