"""The child: the process side of ``cpu=True`` handlers.

The main thread runs one handler after another. A reader thread takes what the parent
sends, and ends this process when the pipe does: a child never outlives its parent. On
Linux the kernel sees to that too, even while native code holds the interpreter.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Generator
from multiprocessing import spawn
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from msgspec import Struct

from penstock.core.context import Context, LeaseLost
from penstock.core.delivery import Progress
from penstock.core.errors import BadResult, PenstockError
from penstock.core.invocation import Invocation
from penstock.core.outcome import (
    Done,
    Failed,
    Outcome,
    failure_of,
    outcome_of_error,
    outcome_of_value,
)

__all__ = ["Ended", "Kept", "NotPortable", "Note", "Save", "Stop", "Work", "context_from", "main"]

_PR_SET_PDEATHSIG = 1


class NotPortable(PenstockError):
    """A handler, its input or its result cannot cross to another process."""

    code = "process.unpicklable"
    remedy = "Define cpu=True handlers at the top of a module; take and return plain data."


class ResultNotPortable(NotPortable, BadResult):
    """A handler has run, and what it returned cannot come back."""


# What goes through the pipe -------------------------------------------------------------


class Work(Struct):
    """Parent to child: call this. ``call`` is a pickled (function, args, kwargs)."""

    call: bytes
    worker_id: str
    main: dict[str, Any]


class Stop(Struct):
    """Parent to child: the handler should end by itself."""

    reason: str


class Kept(Struct):
    """Parent to child: the checkpoint was kept, or why not; ``lost``: and never will be."""

    error: str = ""
    lost: bool = False


class Note(Struct):
    progress: Progress


class Save(Struct):
    value: Any


class Ended(Struct):
    """Child to parent: what became of it, as a pickled `Outcome`."""

    outcome: bytes


class _Channel:
    """The `Backchannel` of a handler in a child."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._sending = threading.Lock()
        self.kept: SimpleQueue[Kept] = SimpleQueue()
        self.stopped = ""
        self.worker_id = ""

    def send(self, message: object) -> None:
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with self._sending:
            self._pipe.send_bytes(data)

    def note(self, progress: Progress) -> None:
        self.send(Note(progress))

    def save(self, value: Any) -> Awaitable[None]:
        self.send(Save(value))
        kept = self.kept.get()
        if kept.error:
            raise LeaseLost(kept.error) if kept.lost else RuntimeError(kept.error)
        return _Nothing()


class _Nothing:
    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


_channel: _Channel | None = None


def context_from(invocation: Invocation) -> Context:
    """Rebuild a context on this side; pickled contexts call it by name."""
    if _channel is None:
        raise NotPortable("a Context was unpickled outside a penstock child process")
    return Context(invocation, _channel)


def main(fd: int, parent: int) -> None:
    """Serve the parent behind ``fd`` until it goes away."""
    global _channel  # noqa: PLW0603 - one process, one channel
    _die_with(parent)
    for ignored in (signal.SIGINT, signal.SIGTERM):  # the parent decides, also about a drain
        signal.signal(ignored, signal.SIG_IGN)
    pipe = Connection(fd)
    channel = _channel = _Channel(pipe)
    inbox: SimpleQueue[Work] = SimpleQueue()
    reader = threading.Thread(target=_read, args=(pipe, channel, inbox), daemon=True)
    reader.start()
    while True:
        work = inbox.get()
        channel.stopped, channel.worker_id = "", work.worker_id
        channel.send(Ended(_packed(_outcome_of(work))))


def _read(pipe: Connection, channel: _Channel, inbox: SimpleQueue[Work]) -> None:
    while True:
        try:
            message = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
        match message:
            case Work():
                inbox.put(message)
            case Stop(reason=reason):
                channel.stopped = reason
            case Kept():
                channel.kept.put(message)


def _outcome_of(work: Work) -> Outcome:
    try:
        fn, args, kwargs = _unpacked(work)
        return outcome_of_value(fn(*args, **kwargs))
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
        return outcome_of_error(error)


def _unpacked(work: Work) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    if work.main and not hasattr(sys.modules["__main__"], "__file__"):
        spawn.prepare(work.main)  # the handler is in the program's own file
    try:
        call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] = pickle.loads(work.call)
    except Exception as error:
        raise NotPortable(f"the handler cannot be loaded in its process: {error}") from error
    return call


def _packed(outcome: Outcome) -> bytes:
    try:
        return pickle.dumps(outcome, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # noqa: BLE001 - pickling raises what it likes
        text = f"the result cannot be sent back: {error}"
        refusal = ResultNotPortable(text) if isinstance(outcome, Done) else NotPortable(text)
        return pickle.dumps(Failed(failure_of(refusal)), pickle.HIGHEST_PROTOCOL)


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before we could ask
        os._exit(0)
