"""The desk at which the snippets of one page are tried, as a reader would: in an empty folder.

- A block that begins with a comment naming a file (``# app.py``) is saved under that name; Python
  is then imported, settings are read.
- Other Python blocks are run as programs, shell commands one after the other.
- Commands that do not end (``penstock worker``, ``dev``, …) go on beside the others until the
  page is over, and must then end in peace. A file that is saved while ``penstock dev`` runs has
  been reloaded before anything else happens.
- The well-known ports of NATS and Redis stand for ports of the test's own, with a server behind
  them unless the page starts one there, and so does our own for HTTP, where the page starts it;
  nothing else in a snippet is changed.
- Every desk has the `shop.py` of the tutorial on it, so a page about something else need not
  repeat it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType

from penstock.broker.embedded import EmbeddedNats
from penstock.broker.redis_embedded import EmbeddedRedis
from tests.docs.commands import SHELLS, Command, commands_of, mismatch
from tests.docs.pages import ROOT, Block

__all__ = ["Desk", "SnippetFailed"]

SHOP = ROOT / "docs" / "shop.py"
WITHIN_S = 180
CHECKED_ONLY = re.compile(r"^(make|git|cd) ")  # `make test` would run this very test
ENDLESS = re.compile(r"(^|\s)penstock (worker|dev|up|serve)\b(?!.*--help)")
NATS_PORT = re.compile(r"(?P<own>--port )4222|(?:localhost|127\.0\.0\.1):4222")
HTTP_PORT = re.compile(r"(?:localhost|127\.0\.0\.1):8080")
REDIS_PORT = re.compile(r"(?:localhost|127\.0\.0\.1):6379")
_FILE_NAME = re.compile(r"^# ([\w./-]+\.(?:py|toml))\s*$", re.MULTILINE)
_READY = "serving "


class SnippetFailed(AssertionError):
    """A snippet does not do what the page says."""

    def __init__(self, place: str, what: str, said: str = "") -> None:
        super().__init__(f"{place}: {what}\n{said}".rstrip())


class Desk:
    """``with Desk(folder) as desk: desk.work(block)``; leaving it ends what still runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._beside: list[Beside] = []
        self._nats_port = 0
        self._redis_port = 0
        self._http_port = 0
        self._state = folder / ".shell-state"
        home = folder / ".home"
        home.mkdir()
        self.environ = {**_plain_environ(), "HOME": str(home)}
        if SHOP.exists():
            shutil.copy(SHOP, folder)

    def __enter__(self) -> Desk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        with self._stack:
            for one in self._beside:
                one.stop()
            if kind is None:
                for one in self._beside:
                    one.must_have_ended_well()

    def work(self, block: Block) -> None:
        """Do what a reader would with this block. Raises `SnippetFailed`."""
        if block.not_run is not None:
            return
        if block.language == "python":
            self._python(block)
        elif block.language == "toml":
            self._toml(block)
        elif block.language in SHELLS:
            for command in commands_of(block):
                self._command(command)

    def _python(self, block: Block) -> None:
        if name := self._saved(block):
            module = name.removesuffix(".py").replace("/", ".")
            self._program(block.place, "-c", f"import {module}")
            return
        program = self.folder / f"snippet_{block.line}.py"
        program.write_text(self._addressed(block.text), "utf-8")
        self._program(block.place, program.name)

    def _toml(self, block: Block) -> None:
        """Settings must be settings; a named file stays there for the commands below."""
        name = self._saved(block) or f"snippet_{block.line}.toml"
        path = self.folder / name
        path.write_text(self._addressed(block.text), "utf-8")
        self._program(block.place, "-m", "penstock", "config", "show", "--config", str(path))

    def _program(self, place: str, *arguments: str) -> None:
        """Python in the terminal where the commands above were typed."""
        command = shlex.join([sys.executable, *arguments])
        self._run(place, ["sh", "-c", f"{self._before()}exec {command}"])

    def _saved(self, block: Block) -> str:
        found = _FILE_NAME.match(block.text)
        if not found:
            return ""
        path = self.folder / found[1]
        text = self._addressed(block.text)
        if not path.exists() or path.read_text("utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            for one in self._beside:
                if one.reloads:
                    one.wait_until_ready()
        return found[1]

    def _command(self, command: Command) -> None:
        if CHECKED_ONLY.match(command.text):
            return
        text = self._addressed(command.text)
        if ENDLESS.search(text) and not command.exit_code:
            script = f"{self._before()}exec {text}"
            beside = Beside(command.place, text, script, self.folder, self.environ)
            self._beside.append(beside)
            beside.wait_until_ready()
            return
        done = self._run(command.place, ["sh", "-c", self._script(text)], command.exit_code)
        if command.shown is not None and (why := mismatch(command.shown, done.stdout)):
            raise SnippetFailed(command.place, why, done.stderr)

    def _script(self, text: str) -> str:
        """The command with the variables of those before it."""
        return f"{self._before()}{text}\nexport -p >'{self._state}'\n"

    def _before(self) -> str:
        return f"set -eua\n[ ! -e '{self._state}' ] || . '{self._state}'\n"

    def _run(
        self, place: str, command: list[str], exit_code: int = 0
    ) -> subprocess.CompletedProcess[str]:
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=WITHIN_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise SnippetFailed(place, f"does not end within {WITHIN_S} s", str(error)) from error
        if done.returncode != exit_code:
            said = f"{done.stdout}{done.stderr}{self._said_beside()}"
            raise SnippetFailed(place, f"exit code {done.returncode}, not {exit_code}", said)
        return done

    def _said_beside(self) -> str:
        return "".join(f"\n--- {one.place} said:\n{''.join(one.said)}" for one in self._beside)

    def _addressed(self, text: str) -> str:
        text = NATS_PORT.sub(self._nats_at, text)
        text = HTTP_PORT.sub(self._http_at, text)
        return REDIS_PORT.sub(self._redis_at, text)

    def _nats_at(self, found: re.Match[str]) -> str:
        if not self._nats_port:
            self._nats_port = (
                free_port() if found["own"] else self._stack.enter_context(EmbeddedNats()).port
            )
        return f"{found['own'] or '127.0.0.1:'}{self._nats_port}"

    def _http_at(self, _: re.Match[str]) -> str:
        self._http_port = self._http_port or free_port()
        return f"127.0.0.1:{self._http_port}"

    def _redis_at(self, _: re.Match[str]) -> str:
        if not self._redis_port:
            self._redis_port = self._stack.enter_context(EmbeddedRedis()).port
        return f"127.0.0.1:{self._redis_port}"


class Beside:
    """A command that goes on while the reader types others in a second terminal."""

    def __init__(
        self, place: str, text: str, script: str, folder: Path, environ: Mapping[str, str]
    ) -> None:
        self.place = place
        self.reloads = " dev " in text
        self.said: list[str] = []
        self._readings: SimpleQueue[bool] = SimpleQueue()  # True: serves; False: has ended
        self._process = subprocess.Popen(
            ["sh", "-c", script],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"docs:{place}", daemon=True)
        self._reader.start()

    def wait_until_ready(self) -> None:
        """Until it says that it serves (once more)."""
        try:
            serves = self._readings.get(timeout=WITHIN_S)
        except Empty:
            raise SnippetFailed(self.place, "is not ready in time", "".join(self.said)) from None
        if not serves:
            raise SnippetFailed(self.place, "ended at once", "".join(self.said))

    def stop(self) -> None:
        """Ctrl-C; SIGKILL when that is not heard."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._process.wait()
        self._reader.join()

    def must_have_ended_well(self) -> None:
        if self._process.returncode != 0:
            raise SnippetFailed(
                self.place, f"ended with {self._process.returncode}", "".join(self.said)
            )

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(line)
            if line.startswith(_READY):
                self._readings.put(True)
        self._readings.put(False)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _plain_environ() -> dict[str, str]:
    """A reader's environment: ours without what the settings would read, `penstock` on PATH."""
    ours = ("PENSTOCK_", "NATS_URL", "REDIS_URL", "_PENSTOCK", "XDG_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = os.pathsep.join((str(Path(sys.executable).parent), kept.get("PATH", "")))
    return {**kept, "PATH": path, "NO_COLOR": "1", "COLUMNS": "100"}
