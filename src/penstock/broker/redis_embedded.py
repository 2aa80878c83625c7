"""A Redis server of our own: found in the installed wheel, started on loopback, never orphaned.

`EmbeddedRedis` keeps the promises of `EmbeddedNats`: it ends when `stop` is called and also
when this process dies in any way, SIGKILL included (a small shell waits at the end of a
pipe that only we hold open). A named folder is kept and locked, for two servers on one
folder would destroy it; without a name a temporary one is used and removed at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

from penstock.broker.freeze import freeze
from penstock.broker.redis_binary import find_redis_server
from penstock.broker.resp import RespReader, encode_command
from penstock.core.errors import Problem

__all__ = ["EmbeddedRedis"]

# $1 is a folder to remove if our parent dies, or "-"; then the program. The reader of the pipe
# and the server are both children of one shell, so the shell ends as soon as the server does.
_GUARD: Final = """
gone=$1; shift; exec 3<&0
"$@" </dev/null 3<&- >/dev/null 2>&1 & p=$!
echo $p
( read _; [ "$gone" = - ] || : >"$gone/orphaned"; kill -CONT $p; kill -TERM $p
  sleep 10 & s=$!; trap 'kill $s; exit' TERM; wait $s; kill -KILL $p
) <&3 3<&- >/dev/null 2>&1 & w=$!
exec 3<&- >&-
wait $p; code=$?
if [ -e "$gone/orphaned" ]; then rm -rf "$gone"; fi
kill $w; exit $code
"""
_POLL: Final = 0.002
_PORT_SECONDS: Final = 5.0
_forked_copies: weakref.WeakSet[EmbeddedRedis] = weakref.WeakSet()


class EmbeddedRedis:
    """A redis-server child: ``with EmbeddedRedis() as server: ... server.url``.

    ``aof`` says when writes reach the disk: with ``always`` nothing that was answered is ever
    lost; with ``everysec`` nothing when a process dies, up to a second at power loss. ``port``
    0 takes a free one, kept over restarts. ``options`` are appended to the command line as
    they are. Raises `Problem` in one sentence when the server does not come up.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        aof: Literal["always", "everysec"] = "everysec",
        port: int = 0,
        options: Iterable[str] = (),
        binary: str | Path | None = None,
        start_timeout: float = 20.0,
        grace: float = 5.0,
    ) -> None:
        self._named = Path(folder).expanduser().absolute() if folder is not None else None
        self._temporary: Path | None = None
        self._aof = aof
        self._port = port
        self._options = tuple(options)
        self._binary = binary
        self._start_timeout = start_timeout
        self._grace = grace
        self._guard: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None
        self._pid: int | None = None

    @property
    def url(self) -> str:
        """Where clients connect; known from the first start on."""
        if not self._port:
            raise Problem("the embedded Redis server was not started", code="redis.start")
        return f"redis://127.0.0.1:{self._port}/0"

    @property
    def port(self) -> int:
        return self._port

    @property
    def pid(self) -> int:
        """The process id of redis-server itself."""
        if self._pid is None:
            raise Problem("the embedded Redis server is not running", code="redis.start")
        return self._pid

    @property
    def running(self) -> bool:
        return self._guard is not None and self._guard.poll() is None

    @property
    def folder(self) -> Path:
        """The folder that holds the data."""
        folder = self._named or self._temporary
        if folder is None:
            raise Problem("the temporary folder exists only while started", code="redis.start")
        return folder

    def log_tail(self, lines: int = 20) -> str:
        """The last lines the server wrote since its last start."""
        with contextlib.suppress(OSError, Problem):
            text = (self.folder / "redis-server.log").read_text(errors="replace")
            return "\n".join(text.splitlines()[-lines:])
        return ""

    def start(self) -> EmbeddedRedis:
        """Start the server and return when it answers; a running one stays as it is."""
        if self.running:
            return self
        self._end(signal.SIGKILL)
        program = find_redis_server(self._binary)
        if self._named is None and self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="penstock-redis-"))
        try:
            if self._lock is None:
                self._lock = _own_folder(self.folder)
            self._start_on_a_port(program)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the server: SIGTERM, after the grace SIGKILL. A temporary folder is removed."""
        self._end(signal.SIGTERM)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def restart(self) -> None:
        """Stop (if running) and start on the same folder and port: what a deploy looks like."""
        self._end(signal.SIGTERM)
        self.start()

    def kill(self) -> None:
        """SIGKILL the server, as a crash would. Folder and port are kept for `restart`."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze the server (SIGSTOP): connections stay open, nothing answers."""
        freeze(self.pid)

    def resume(self) -> None:
        """Let a frozen server go on."""
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> EmbeddedRedis:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> EmbeddedRedis:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await asyncio.shield(asyncio.to_thread(self.stop))

    # -- the life of the child -----------------------------------------------------------

    def _start_on_a_port(self, program: Path) -> None:
        """Somebody may hold a port for a moment (a client reconnecting, another server starting):
        wait a little for one that is known to clients, else take another."""
        known = bool(self._port)
        deadline = time.monotonic() + _PORT_SECONDS
        while True:
            self._port = self._port or _free_port()
            self._spawn(program)
            try:
                self._await_ready(time.monotonic() + self._start_timeout)
                return
            except Problem:
                taken = "Address already in use" in self.log_tail()
                self._end(signal.SIGKILL)
                if not taken or time.monotonic() > deadline:
                    raise
                if not known:
                    self._port = 0
                time.sleep(0.02)

    def _spawn(self, program: Path) -> None:
        assert self._lock is not None
        log = self.folder / "redis-server.log"
        log.write_text("")
        # fmt: off
        command = [
            program, "--port", str(self._port), "--bind", "127.0.0.1", "--dir", self.folder,
            "--save", "", "--appendonly", "yes", "--appendfsync", self._aof,
            "--logfile", log, *self._options,
        ]
        # fmt: on
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "penstock-redis", self._temporary or "-", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(self._lock,),  # an orphan still writing its data holds the lock too
            start_new_session=True,  # Ctrl-C is ours to handle, not the server's
        )
        _forked_copies.add(self)
        assert self._guard.stdout is not None
        self._pid = int(self._guard.stdout.readline())

    def _await_ready(self, deadline: float) -> None:
        while not _answers(self._port, self.pid):
            if not self.running:
                self._give_up("ended at once")
            if time.monotonic() > deadline:
                self._give_up(f"did not answer within {self._start_timeout:g} s")
            time.sleep(_POLL)

    def _give_up(self, what: str) -> None:
        said = self.log_tail(3) or "it wrote no log"
        raise Problem(
            f"redis-server on port {self._port} {what}: {said}",
            code="redis.start",
            remedy="free the port or the disk, or give the URL of a Redis that already runs.",
        )

    def _end(self, how: signal.Signals) -> None:
        guard, self._guard = self._guard, None
        pid, self._pid = self._pid, None
        if guard is None or pid is None:
            return
        if guard.poll() is None:
            _signal(pid, how)
            _signal(pid, signal.SIGCONT)  # a frozen server must hear it too
            try:
                guard.wait(self._grace)
            except subprocess.TimeoutExpired:
                _signal(pid, signal.SIGKILL)
                guard.wait(self._grace)
        for pipe in (guard.stdin, guard.stdout):
            if pipe is not None:
                pipe.close()

    def _forget_in_child(self) -> None:
        """A forked copy must neither keep the pipe open nor end its parent's server."""
        guard, self._guard, self._pid = self._guard, None, None
        self._temporary = None
        if guard is not None and guard.stdin is not None:
            with contextlib.suppress(OSError):
                os.close(guard.stdin.fileno())
            guard.stdin = None
            guard.returncode = 0  # it is not ours to wait for
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _answers(port: int, pid: int) -> bool:
    """Whether *our* server serves this port, with its data loaded."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 2) as talk:
        talk.sendall(encode_command(("PING",)) + encode_command(("INFO", "server")))
        reader, replies = RespReader(), list[object]()
        while len(replies) < 2:
            data = talk.recv(65536)
            if not data:
                return False
            replies += reader.feed(data)
        return replies[0] == b"PONG" and f"process_id:{pid}\r".encode() in bytes(replies[1])  # type: ignore[call-overload]
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _own_folder(folder: Path) -> int:
    """Make the folder and take its lock. Raises `Problem` when it cannot be had."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _lock_folder(folder)
    except OSError as error:
        raise Problem(
            f"the folder {folder} of the embedded Redis server cannot be used: {error.strerror}",
            code="redis.folder",
            remedy="choose a folder that can be written to.",
        ) from error


def _lock_folder(folder: Path) -> int:
    """An open, locked descriptor; the lock of a server that is just ending is waited for."""
    descriptor = os.open(folder / ".penstock.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + 1.0
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise Problem(
                    f"the folder {folder} is in use by another embedded Redis server",
                    code="redis.folder.in_use",
                    remedy="stop that one, connect to its URL, or choose another folder.",
                ) from error
            time.sleep(0.02)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _after_fork() -> None:
    for server in list(_forked_copies):
        server._forget_in_child()


os.register_at_fork(after_in_child=_after_fork)
