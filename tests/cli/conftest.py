"""The real command in a real process, in a folder of its own that holds the sample application."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.embedded import EmbeddedNats

SAMPLE = Path(__file__).with_name("sample_app.py")
DEADLINE_S = 180
STORY_S = 400  # a story may be twenty commands, each a process, on a machine that has other work


def clean_environ(**more: str) -> dict[str, str]:
    """Our environment without anything that the settings would read."""
    ours = ("PENSTOCK_", "NATS_URL", "_PENSTOCK")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, "NO_COLOR": "1", "COLUMNS": "100", **more}


class Ended(subprocess.CompletedProcess[str]):
    """A command that ended, with what it printed."""

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


class Cli:
    """Runs ``penstock`` in one folder."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self.folder = folder
        self.environ = dict(environ)

    def __call__(self, *arguments: str, stdin: str = "", **environ: str) -> Ended:
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env={**self.environ, **environ},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        return Ended(done.args, done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str, **environ: str) -> Running:
        return Running(self.command(*arguments), self.folder, {**self.environ, **environ})

    @staticmethod
    def command(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "penstock", *arguments]


class Running:
    """A command under way; wait for what it says, never for time to pass."""

    def __init__(self, command: list[str], folder: Path, environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said: list[str] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, *words: str) -> str:
        """The next line that holds one of ``words``; the test's own timeout is the deadline."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(line)
            if any(word in line for word in words):
                return line
        raise AssertionError(f"ended without {words}:\n{''.join(self.said)}")

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def ended(self) -> int:
        """Its exit code, once it has ended."""
        out, _ = self._process.communicate(timeout=DEADLINE_S)
        self.said.append(out)
        return self._process.returncode

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def said_last(self) -> str:
        """The last line, once it has ended."""
        self.ended()
        return "".join(self.said).strip().splitlines()[-1]

    def stop(self, number: int) -> int:
        """Its exit code after a signal."""
        self.send(number)
        return self.ended()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the stories here the time that many processes may need."""
    for item in items:
        if SAMPLE.parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(STORY_S))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(SAMPLE, tmp_path)
    return tmp_path


@pytest.fixture
def cli(folder: Path) -> Cli:
    """The command without any server configured."""
    return Cli(folder, clean_environ())


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedNats]:
    with EmbeddedNats() as embedded:
        yield embedded


@pytest.fixture(scope="module")
def served(server: EmbeddedNats, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """The command against a server where one worker serves the sample application."""
    folder = tmp_path_factory.mktemp("served")
    shutil.copy(SAMPLE, folder)
    cli = Cli(folder, clean_environ(PENSTOCK_NATS_URL=server.url))
    worker = cli.start("worker", "sample_app:app", "--grace", "1s")
    try:
        worker.wait_for("serving sample_app:app")
        yield cli
        worker.send(15)
        assert worker.ended() == 0, worker.said
    finally:
        worker.kill()
