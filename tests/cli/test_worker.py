"""``penstock worker``: serving, draining, several processes, replacing a tired one."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from penstock.broker.embedded import EmbeddedNats
from tests.cli.conftest import Cli, clean_environ

SLOW = """
import asyncio, os
from pathlib import Path
from penstock import App

app = App("slow")

@app.task
async def held(gate: str) -> int:
    Path(f"{gate}.started").touch()
    while not Path(gate).exists():
        await asyncio.sleep(0.01)
    return os.getpid()

@app.task(reply=True)
async def who() -> int:
    return os.getpid()
"""


def with_slow_app(folder: Path, server: EmbeddedNats) -> Cli:
    (folder / "slow_app.py").write_text(SLOW)
    return Cli(folder, clean_environ(PENSTOCK_NATS_URL=server.url))


def test_without_any_server_a_worker_brings_its_own_and_others_may_use_it(cli: Cli) -> None:
    worker = cli.start("worker", "sample_app:app")
    try:
        url = worker.wait_for("serving").split()[-1]

        assert cli("task", "call", "greet", "name=ann", "--nats", url).json == "hello ann"
        worker.send(signal.SIGTERM)
        assert worker.ended() == 0
        assert cli("task", "ls", "--nats", url).returncode == 3
    finally:
        worker.kill()


def test_sigterm_lets_what_runs_finish(folder: Path, fresh_nats: EmbeddedNats) -> None:
    cli = with_slow_app(folder, fresh_nats)
    worker = cli.start("worker", "slow_app:app", "--natq")
    try:
        worker.wait_for("serving slow_app:app over natq")
        cli("task", "enqueue", "held", "gate=open", "--run-id", "r")
        cli_wait(folder / "open.started")

        worker.send(signal.SIGTERM)
        (folder / "open").touch()

        assert worker.ended() == 0
        assert isinstance(cli("task", "result", "held", "r").json, int)
    finally:
        worker.kill()


def test_several_processes_serve_together_and_end_together(
    folder: Path, fresh_nats: EmbeddedNats
) -> None:
    cli = with_slow_app(folder, fresh_nats)
    worker = cli.start("worker", "slow_app:app", "--processes", "2", "--concurrency", "1")
    try:
        for _ in range(2):
            worker.wait_for("serving")
        for run_id in ("a", "b"):  # held at once by two processes of one slot each
            cli("task", "enqueue", "held", "gate=open", f"--run-id={run_id}")
        (folder / "open").touch()
        pids = [cli("task", "result", "held", run, "--timeout", "20s").json for run in "ab"]

        assert worker.pid not in pids
        worker.send(signal.SIGTERM)
        assert worker.ended() == 0
    finally:
        worker.kill()


def test_a_process_that_has_done_its_jobs_is_replaced_by_a_fresh_one(
    folder: Path, fresh_nats: EmbeddedNats
) -> None:
    cli = with_slow_app(folder, fresh_nats)
    (folder / "open").touch()
    worker = cli.start("worker", "slow_app:app", "--max-jobs", "1")
    try:
        worker.wait_for("serving")
        first = cli("task", "enqueue", "held", "gate=open", "--wait").json
        worker.wait_for("serving")
        second = cli("task", "enqueue", "held", "gate=open", "--wait").json

        assert first != second
        worker.send(signal.SIGTERM)
        assert worker.ended() == 0
    finally:
        worker.kill()


def test_an_app_that_cannot_be_loaded_ends_a_supervised_worker_at_once(cli: Cli) -> None:
    done = cli("worker", "sample_app:ap", "--processes", "2")

    assert done.returncode == 2
    assert re.search(r"did you mean 'app'", done.stderr)
    assert done.stderr.count("error:") == 1


def cli_wait(path: Path) -> None:
    """Until ``path`` is there; the test's own timeout is the deadline."""
    import time

    while not path.exists():
        time.sleep(0.01)
