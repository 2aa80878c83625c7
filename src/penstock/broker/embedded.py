"""A NATS server of our own, for as long as we live and not one second longer.

`EmbeddedNats` starts the real nats-server as a child on a loopback port, with JetStream on,
and hands out its URL once JetStream answers. The promises:

- It dies with its parent, whatever kills the parent, and whichever thread started it. A
  small shell between the two waits at the end of a pipe; the kernel closes the pipe with us.
  (A parent-death signal would fire when the starting *thread* ends.)
- Two servers never open one store: nats-server itself does not refuse that, so the folder
  is locked, and the lock is inherited by the server, that an orphan still finishing its
  shutdown holds it too.
- A temporary store is removed at the end, a named one is kept and can be opened again.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final
from urllib.parse import quote

import msgspec

from penstock.broker.binary import MIN_API_LEVEL, find_nats_server
from penstock.broker.freeze import freeze
from penstock.broker.probe import ProbeRefused, probe
from penstock.core.errors import Problem

__all__ = ["EmbeddedNats", "ServerLimits"]

# $1 folder of this run, $2 log, then the program. The reader of the pipe and the server are
# both children of one shell, so the shell ends as soon as the server does. An end of the pipe
# while the server still runs means that our parent is gone: stop it and clear up.
_GUARD: Final = """
run=$1 log=$2; shift 2; exec 3<&0
"$@" </dev/null 3<&- >>"$log" 2>&1 & p=$!
echo $p
( read _; : >"$run/orphaned"; kill -CONT $p; kill -TERM $p
  sleep 10 & s=$!; trap 'kill $s; exit' TERM; wait $s; kill -KILL $p ) <&3 3<&- >&2 & w=$!
exec 3<&- >&-
wait $p; code=$?
if [ -e "$run/orphaned" ]; then rm -rf "$run"; fi
kill $w; exit $code
"""
_POLL: Final = 0.002
_forked_copies: weakref.WeakSet[EmbeddedNats] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What the embedded server may use. ``None`` leaves the choice to nats-server."""

    max_payload: int | None = None
    max_file_store: int | None = None
    max_memory_store: int | None = None
    sync_interval: str | None = None  # "1s", or "always": slow, about 1,000 writes a second


class EmbeddedNats:
    """A nats-server child process: ``with EmbeddedNats() as server: ... server.url``.

    ``store`` names a folder to keep; without it the store is temporary. ``port`` 0 takes a
    free one. ``user`` and ``password``, or ``token``, close the server to others on the machine;
    ``config`` is appended to its configuration as it is. Safe to start and stop repeatedly;
    raises `Problem` in one sentence, with the server's last words, when it does not come up.
    """

    def __init__(
        self,
        store: str | Path | None = None,
        *,
        port: int = 0,
        limits: ServerLimits | None = None,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        config: str = "",
        binary: str | Path | None = None,
        start_timeout: float = 20.0,
        grace: float = 5.0,
    ) -> None:
        self._named_store = Path(store) if store is not None else None
        self._port = port
        self._limits = limits or ServerLimits()
        self._credentials = _credentials(user, password, token)
        self._config = config
        self._binary = binary
        self._start_timeout = start_timeout
        self._grace = grace
        self._run: Path | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None
        self._pid: int | None = None
        self._last_log = ""

    @property
    def url(self) -> str:
        """Where clients connect, credentials included; known from the first start on."""
        if not self._port:
            raise Problem("the embedded NATS server was not started", code="nats.start")
        who = self._credentials
        parts = (who.get("auth_token"), who.get("user"), who.get("pass"))
        login = ":".join(quote(part, safe="") for part in parts if part)
        return f"nats://{login}{'@' if login else ''}127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    @property
    def pid(self) -> int:
        """The process id of nats-server itself."""
        if self._pid is None:
            raise Problem("the embedded NATS server is not running", code="nats.start")
        return self._pid

    @property
    def running(self) -> bool:
        return self._guard is not None and self._guard.poll() is None

    @property
    def store(self) -> Path:
        """The folder that holds the streams."""
        if self._named_store is not None:
            return self._named_store
        if self._run is None:
            raise Problem("the temporary store exists only while started", code="nats.start")
        return self._run / "store"

    def log_tail(self, lines: int = 20) -> str:
        """The last lines the server wrote, also after it ended."""
        with contextlib.suppress(OSError, Problem):
            self._last_log = self._log.read_text(errors="replace")
        return "\n".join(self._last_log.splitlines()[-lines:])

    def start(self) -> EmbeddedNats:
        """Start the server and return when JetStream answers; a running one stays as it is."""
        if self.running:
            return self
        self._reap()
        program = find_nats_server(self._binary)
        if self._run is None:
            self._run = Path(tempfile.mkdtemp(prefix="penstock-nats-"))
        try:
            if self._lock is None:
                self._lock = _own_folder(self.store)
            self._spawn(program)
            self._await_ready(time.monotonic() + self._start_timeout)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the server: SIGTERM, after the grace SIGKILL. A temporary store is removed."""
        self._end(signal.SIGTERM)
        self.log_tail()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._run is not None:
            shutil.rmtree(self._run, ignore_errors=True)
            self._run = None

    def restart(self) -> None:
        """Stop (if running) and start on the same store and port: what a deploy looks like."""
        self._end(signal.SIGTERM)
        self._start_again()

    def kill(self) -> None:
        """SIGKILL the server, as a crash would. Store and port are kept for `restart`."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze the server (SIGSTOP): connections stay open, nothing answers."""
        freeze(self.pid)

    def resume(self) -> None:
        """Let a frozen server go on."""
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> EmbeddedNats:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> EmbeddedNats:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await asyncio.shield(asyncio.to_thread(self.stop))

    # -- the life of the child -----------------------------------------------------------

    @property
    def _log(self) -> Path:
        return self.store / "nats-server.log"

    def _spawn(self, program: Path) -> None:
        assert self._run is not None and self._lock is not None
        configuration = self._run / "server.conf"
        configuration.write_text(self._configuration())
        configuration.chmod(0o600)  # it may hold a password
        self._log.write_text("")
        command: list[str | Path] = [program, "-c", configuration, "--ports_file_dir", self._run]
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "penstock-nats", self._run, self._log, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(self._lock,),
            start_new_session=True,  # Ctrl-C is ours to handle, not the server's
        )
        _forked_copies.add(self)
        assert self._guard.stdout is not None
        self._pid = int(self._guard.stdout.readline())

    def _configuration(self) -> str:
        limits, who = self._limits, self._credentials
        lines = [
            f'listen: "127.0.0.1:{self._port or -1}"',
            f"max_payload: {limits.max_payload}" if limits.max_payload else "",
            "jetstream {",
            f"  store_dir: {_quoted(str(self.store.resolve()))}",
            f"  max_file_store: {limits.max_file_store}" if limits.max_file_store else "",
            f"  max_memory_store: {limits.max_memory_store}" if limits.max_memory_store else "",
            f"  sync_interval: {_quoted(limits.sync_interval)}" if limits.sync_interval else "",
            "}",
        ]
        if "auth_token" in who:
            lines.append(f"authorization {{ token: {_quoted(who['auth_token'])} }}")
        elif who:
            pair = f"user: {_quoted(who['user'])}, password: {_quoted(who['pass'])}"
            lines.append(f"authorization {{ {pair} }}")
        return "\n".join([line for line in lines if line] + [self._config, ""])

    def _await_ready(self, deadline: float) -> None:
        while not self._answers():
            if not self.running:
                raise self._failure(f"ended at start with code {self._reap()}")
            if time.monotonic() > deadline:
                raise self._failure(f"was not ready after {self._start_timeout:g} s")
            time.sleep(_POLL)

    def _answers(self) -> bool:
        assert self._run is not None
        if not (port := _announced_port(self._run, self.pid)):
            return False
        try:
            answer = probe(port, "$JS.API.INFO", credentials=self._credentials)
        except ProbeRefused:  # users or TLS come from the caller's own configuration
            if "Server is ready" not in self.log_tail(10**6):
                return False
        except OSError:
            return False
        else:
            if not answer:
                return False  # JetStream is still opening its streams
            level = msgspec.json.decode(answer).get("api", {}).get("level", 0)
            if level < MIN_API_LEVEL:
                raise self._failure(f"has JetStream API level {level}")
        self._port = port
        return True

    def _start_again(self) -> None:
        deadline = time.monotonic() + 5.0
        while True:
            try:
                self._start_kept()
                return
            except Problem:  # somebody may hold our port for a moment: a client reconnecting
                if time.monotonic() > deadline or "in use" not in self.log_tail():
                    raise
                time.sleep(0.05)

    def _start_kept(self) -> None:
        """As `start`, but a failure leaves the temporary store in place."""
        if self._run is None or self._lock is None:
            self.start()
            return
        self._reap()
        self._spawn(find_nats_server(self._binary))
        try:
            self._await_ready(time.monotonic() + self._start_timeout)
        except BaseException:
            self._end(signal.SIGKILL)
            raise

    def _end(self, how: signal.Signals) -> None:
        guard, pid = self._guard, self._pid
        if guard is None or pid is None:
            return
        if guard.poll() is None:
            _signal(pid, how)
            _signal(pid, signal.SIGCONT)  # a frozen server cannot hear SIGTERM
            try:
                guard.wait(self._grace)
            except subprocess.TimeoutExpired:
                _signal(pid, signal.SIGKILL)
                guard.wait(self._grace)
        self._reap()

    def _reap(self) -> int | None:
        guard, self._guard, self._pid = self._guard, None, None
        if guard is None:
            return None
        code = guard.wait()
        for pipe in (guard.stdin, guard.stdout):
            if pipe is not None:
                pipe.close()
        return code

    def _failure(self, what: str) -> Problem:
        if "address already in use" in self.log_tail(200):
            return Problem(
                f"port {self._port} of 127.0.0.1 is in use by another program",
                code="nats.start.port",
                remedy="stop what listens on it, or choose another port (0 takes a free one).",
            )
        said = [line for line in self.log_tail(200).splitlines() if line.strip()]
        loud = [line for line in said if "[FTL]" in line or "[ERR]" in line] or said
        words = f"; it said: {loud[-1].strip()}" if loud else ""
        return Problem(
            f"the embedded nats-server {what}{words}",
            code="nats.start",
            remedy=f"look at {self._log}"
            if self._named_store
            else "give it a store=... folder to keep its whole log.",
        )

    def _forget_in_child(self) -> None:
        """After a fork: close our copies, or the pipe and lock would outlive the parent."""
        guard, lock = self._guard, self._lock
        self._guard = self._lock = self._pid = self._run = None
        if guard is not None:
            guard.returncode = 0  # not ours to wait for
            for pipe in (guard.stdin, guard.stdout):
                if pipe is not None:
                    pipe.close()
        if lock is not None:
            os.close(lock)


def _credentials(user: str | None, password: str | None, token: str | None) -> dict[str, str]:
    if token is not None:
        return {"auth_token": token}
    if user is not None:
        return {"user": user, "pass": password or ""}
    return {}


def _own_folder(folder: Path) -> int:
    """Make the folder and take its lock. Raises `Problem` when it cannot be had."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _lock_folder(folder)
    except OSError as error:
        raise Problem(
            f"the store {folder} of the embedded NATS server cannot be used: {error.strerror}",
            code="nats.store",
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
                    f"the store {folder} is in use by another embedded NATS server",
                    code="nats.store.in_use",
                    remedy="stop that one, connect to its URL, or choose another folder.",
                ) from error
            time.sleep(0.02)


def _announced_port(run: Path, pid: int) -> int | None:
    for path in run.glob(f"*_{pid}.ports"):
        with contextlib.suppress(msgspec.DecodeError, OSError, KeyError, IndexError):
            url: str = msgspec.json.decode(path.read_bytes())["nats"][0]
            return int(url.rpartition(":")[2])
    return None


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _after_fork() -> None:
    for server in list(_forked_copies):
        server._forget_in_child()


os.register_at_fork(after_in_child=_after_fork)
