"""Handlers for other processes: at the top of a module, as `cpu=True` asks for."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from penstock import Context, Reject, Retry

__all__ = [
    "ask_context",
    "boast",
    "crash",
    "die",
    "heed",
    "leave",
    "pid",
    "refuse",
    "save",
    "save_when_told",
    "spin_forever",
    "square",
]


def square(n: int) -> int:
    return n * n


def pid() -> int:
    return os.getpid()


def spin_forever() -> None:
    while True:
        pass


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    os._exit(7)


def crash() -> None:
    """What a failed assertion in native code does."""
    os.abort()


def refuse(reason: str) -> None:
    raise Reject(reason, code="too_big", status=413, data={"limit": 1})


def again() -> None:
    raise Retry("later", after=5)


def boast() -> Any:
    return lambda: "this cannot be sent anywhere"


def exit_politely() -> None:
    sys.exit(3)


def ask_context(ctx: Context) -> dict[str, Any]:
    ctx.progress(1, 2, "half")
    return {"run": ctx.run_id, "attempt": ctx.attempt, "worker": ctx.worker_id, "saved": ctx.saved}


def save(ctx: Context, value: int) -> str:
    ctx.checkpoint(value)
    return "kept"


def heed(ctx: Context, gate: str, go: str = "") -> str:
    """Says by the file ``gate`` that it runs; ends when it is told to, or ``go`` is there."""
    Path(gate).write_text(str(os.getpid()))
    while not ctx.lost:
        if go and Path(go).exists():
            return "finished"
        time.sleep(0.01)
    return "stopped in time"


def save_when_told(ctx: Context, gate: str) -> None:
    Path(gate).touch()
    while not ctx.lost:
        time.sleep(0.005)
    ctx.checkpoint({"page": 7})
    ctx.raise_if_lost()
