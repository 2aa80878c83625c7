"""A worker in a fresh process that drains when asked and never outlives who started it.

The child holds the reading end of a pipe; when its parent is gone, however it went, the pipe
ends and the child stops as if it had been sent SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

__all__ = ["WorkerChild", "stop_with_parent"]

_VARIABLE = "PENSTOCK_PARENT_PIPE"


class WorkerChild:
    """``penstock worker …`` as a child process. One at a time; can be started again."""

    def __init__(
        self, arguments: Sequence[str], environ: Mapping[str, str], *, stderr: int | None = None
    ) -> None:
        self._command = [sys.executable, "-m", "penstock", "worker", *arguments]
        self._environ = dict(environ)
        self._stderr = stderr
        self._process: asyncio.subprocess.Process | None = None
        self._pipe: int | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The process that was started last."""
        assert self._process is not None
        return self._process

    async def start(self) -> None:
        """Start a fresh process; the one before must have ended."""
        ours_reads, self._pipe = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                env={**self._environ, _VARIABLE: str(ours_reads)},
                stderr=self._stderr,
                pass_fds=(ours_reads,),
                process_group=0,  # Ctrl-C is for the parent, which then drains the child
            )
        finally:
            os.close(ours_reads)

    async def ended(self) -> int:
        """Wait until the process ends; its exit code."""
        assert self._process is not None
        code = await self._process.wait()
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
        return code

    async def drain(self) -> int | None:
        """SIGTERM, and wait until the worker has let its handlers finish or given them back."""
        if self._process is None:
            return None
        self._signal(signal.SIGTERM)
        return await self.ended()

    def force(self) -> None:
        """Do not wait for handlers: a second SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: what it had in hand comes back to others when its leases end."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.running and self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def stop_with_parent() -> None:
    """In the child: send ourselves SIGTERM once the parent is gone. Nothing, if there is none."""
    said = os.environ.pop(_VARIABLE, "")
    if not said.isdigit():
        return
    pipe = int(said)
    os.set_inheritable(pipe, False)

    def wait() -> None:
        with suppress(OSError):
            os.read(pipe, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="penstock-parent", daemon=True).start()
