"""Processes for ``cpu=True`` handlers: a few children, each with one job at a time.

A child is a fresh interpreter, started when needed and kept for the next job. A handler
that must end is ended: its child is killed and replaced. A child that dies by itself fails
only the job it had, as ``process_died``. Children never outlive the worker, not even when
it is killed.

Each child has a thread that drives it over a pipe, so progress and checkpoints take the
same way to the loop as those of a sync handler.
"""

from __future__ import annotations

import asyncio
import copyreg
import io
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from msgspec.structs import replace

from penstock.core.context import Backchannel, Context, LeaseLost
from penstock.core.errors import PenstockError
from penstock.core.invocation import Invocation
from penstock.core.outcome import Outcome
from penstock.runtime.child import Ended, Kept, Note, NotPortable, Save, Stop, Work, context_from
from penstock.runtime.threads import ThreadCall, Threads

__all__ = ["ProcessCall", "ProcessDied", "Processes"]

_LOOK_S = 0.25  # how soon a handler in a child hears that it should stop
_GONE_WITHIN_S = 2.0
_BOOT = (
    "import sys; sys.path[:] = sys.argv[3:]; from penstock.runtime.child import main; "
    "main(int(sys.argv[1]), int(sys.argv[2]))"
)


class ProcessDied(PenstockError):
    """The process that ran a handler ended before the handler did."""

    code = "process_died"
    remedy = "Look for a crash in native code or for the kernel's out-of-memory killer."


class _Child:
    """One interpreter and the pipe to it, driven by the thread that started it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(theirs.fileno()), str(os.getpid()), *sys.path],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._pipe = Connection(ours.detach())

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Safe from any thread and at any time."""
        self._process.kill()

    def end(self) -> None:
        """Kill it, and leave no zombie."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # it hangs in the kernel: leave it to that
            self._process.wait(_GONE_WITHIN_S)

    def run(self, work: Work, back: Backchannel) -> Outcome:
        """Have ``work`` done. Raises `ProcessDied` when the child ends before that."""
        try:
            self._send(work)
            return self._converse(back)
        except (EOFError, OSError) as error:
            raise ProcessDied(f"the process of the handler died: {self._bury()}") from error

    def _converse(self, back: Backchannel) -> Outcome:
        told = False
        while True:
            if not self._pipe.poll(_LOOK_S):
                if not told and (reason := back.stopped):
                    told = True
                    self._send(Stop(reason))
                continue
            match pickle.loads(self._pipe.recv_bytes()):
                case Note(progress=progress):
                    back.note(progress)
                case Save(value=value):
                    self._send(_keep(back, value))
                case Ended(outcome=outcome):
                    said: Outcome = pickle.loads(outcome)
                    return said

    def _send(self, message: object) -> None:
        self._pipe.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def _bury(self) -> str:
        self._process.kill()
        code = self._process.wait()
        self._pipe.close()
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


class ProcessCall(ThreadCall):
    """A call in a child; giving it up kills the child."""

    __slots__ = ("_child", "_lock")

    def __init__(self, work: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(work, loop)
        self._child: _Child | None = None
        self._lock = threading.Lock()

    def abandon(self) -> None:
        with self._lock:
            super().abandon()
            if self._child is not None:
                self._child.kill()

    def taken_by(self, child: _Child) -> None:
        with self._lock:
            self._child = child
            if self.abandoned:
                child.kill()

    def let_go(self) -> bool:
        """From here on `abandon` spares the child. Whether it came before, and killed it."""
        with self._lock:
            self._child = None
            return self.abandoned


class Processes:
    """At most ``size`` children, one per driving thread."""

    def __init__(self, size: int) -> None:
        self._drivers = Threads(size, "penstock-cpu")
        self._own = threading.local()
        self._children: set[_Child] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def submit(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        back: Backchannel,
    ) -> ProcessCall:
        """Run ``fn`` in a child; what comes back is its `Outcome`."""
        work = Work(_packed(fn, args, kwargs), back.worker_id, _main_of(fn))
        call = ProcessCall(lambda: self._drive(call, work, back), asyncio.get_running_loop())
        self._drivers.enter(call)
        return call

    def stop(self) -> None:
        """Kill the children."""
        with self._lock:
            self._stopped = True
            children, self._children = self._children, set()
        for child in children:
            child.end()
        self._drivers.stop()

    def pids(self) -> list[int]:
        return [child._process.pid for child in list(self._children)]

    def _drive(self, call: ProcessCall, work: Work, back: Backchannel) -> Outcome:
        child: _Child | None = getattr(self._own, "child", None)
        if child is not None and not child.alive:  # it died while it had nothing to do
            self._forget(child)
            child = None
        child = child or self._new_child()
        call.taken_by(child)
        try:
            return child.run(work, back)
        except ProcessDied:
            self._forget(child)
            raise
        finally:
            if call.let_go():  # it may have ended in the very moment it was killed
                self._forget(child)
                child.end()

    def _forget(self, child: _Child) -> None:
        self._own.child = None
        with self._lock:
            self._children.discard(child)

    def _new_child(self) -> _Child:
        with self._lock:
            if self._stopped:
                raise ProcessDied("the worker is stopping")
            child = self._own.child = _Child()
            self._children.add(child)
        return child


def _keep(back: Backchannel, value: Any) -> Kept:
    try:
        back.save(value)
    except LeaseLost as error:
        return Kept(str(error), lost=True)
    except Exception as error:  # noqa: BLE001 - raised again where the handler is
        return Kept(f"{type(error).__name__}: {error}")
    return Kept()


def _packed(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = {**copyreg.dispatch_table, Context: _reduce_context}
    try:
        pickler.dump((fn, args, kwargs))
    except Exception as error:
        raise NotPortable(f"the handler cannot be sent to a process: {error}") from error
    return buffer.getvalue()


def _reduce_context(context: Context) -> tuple[Callable[..., Context], tuple[Invocation]]:
    """The wire's own message stays behind: it may be anything."""
    plain = replace(context.invocation, wire=None, meta=dict(context.invocation.meta))
    return context_from, (plain,)


def _main_of(fn: Callable[..., Any]) -> dict[str, Any]:
    """How a child finds the program's own file, for handlers that are defined there."""
    if fn.__module__ != "__main__":
        return {}
    program = sys.modules["__main__"]
    name = getattr(getattr(program, "__spec__", None), "name", None)
    path = getattr(program, "__file__", None)
    if name is not None:
        return {"init_main_from_name": name, "sys_argv": sys.argv}
    return {"init_main_from_path": path, "sys_argv": sys.argv} if path is not None else {}
