"""``penstock dev``: a fresh process for every change, on one server that stays."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from penstock.protocols.omniq.sync_client import SyncOmniqClient
from tests.cli.conftest import Cli, Running, clean_environ

APP = """
import os
from penstock import App

app = App("dev")


@app.task(reply=True)
async def who() -> list[int | str]:
    return [os.getpid(), "{version}"]
"""


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    write(tmp_path, "one")
    return Cli(tmp_path, clean_environ())


def write(folder: Path, version: str) -> None:
    (folder / "live.py").write_text(APP.format(version=version))


def who(cli: Cli) -> tuple[int, str]:
    pid, version = cli("task", "call", "who").json
    return int(pid), str(version)


def end(dev: Running) -> int:
    dev.send(signal.SIGINT)
    return dev.ended()


def test_every_change_is_served_by_a_fresh_process_on_the_same_server(cli: Cli) -> None:
    dev = cli.start("dev", "live:app")
    try:
        dev.wait_for("serving live:app")
        kept = cli("task", "enqueue", "later", "--force").stdout.strip()
        first = who(cli)
        write(cli.folder, "two")
        dev.wait_for("serving live:app")
        second = who(cli)

        assert (first[1], second[1]) == ("one", "two")
        assert first[0] != second[0]
        assert "already" in cli("task", "enqueue", "later", "--force", "--run-id", kept).stderr
        assert end(dev) == 0
        assert cli("task", "ls").returncode == 3  # its address has gone with it
    finally:
        dev.kill()


def test_code_that_cannot_be_imported_is_shown_and_the_next_change_serves_again(cli: Cli) -> None:
    dev = cli.start("dev", "live:app")
    try:
        dev.wait_for("serving live:app")
        (cli.folder / "live.py").write_text("def broken(:\n")
        dev.wait_for("SyntaxError")
        dev.wait_for("the next change starts it again")
        write(cli.folder, "mended")
        dev.wait_for("serving live:app")

        assert who(cli)[1] == "mended"
        assert end(dev) == 0
        assert "Traceback" not in "".join(dev.said)
    finally:
        dev.kill()


def test_the_worker_and_the_server_go_even_when_dev_is_killed(cli: Cli) -> None:
    dev = cli.start("dev", "live:app")
    try:
        url = dev.wait_for("NATS:").split()[-1]
        dev.wait_for("serving live:app")
        worker, _ = who(cli)
        dev.send(signal.SIGKILL)
        dev.ended()

        while is_alive(worker):  # the test's own timeout is the deadline
            time.sleep(0.02)
        while cli("task", "ls", "--nats", url).returncode != 3:
            pass
    finally:
        dev.kill()


def test_what_is_stored_is_there_when_dev_is_started_again(cli: Cli) -> None:
    for expected in ("enqueued", "already"):
        dev = cli.start("dev", "live:app")
        try:
            dev.wait_for("serving live:app")
            assert expected in cli("task", "enqueue", "later", "--force", "--run-id", "r").stderr
            assert end(dev) == 0
        finally:
            dev.kill()
    assert (cli.folder / ".penstock" / ".gitignore").read_text() == "*\n"


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_with_omniq_there_is_a_redis_too_that_others_find(cli: Cli) -> None:
    (cli.folder / "live.py").write_text(
        "from pathlib import Path\nfrom penstock import App\n\napp = App('dev')\n\n"
        "@app.task\nasync def leave(name: str) -> None:\n    Path(name).touch()\n"
    )
    dev = cli.start("dev", "live:app", "--omniq", "--natq")
    try:
        url = dev.wait_for("Redis:").split()[-1]
        dev.wait_for("serving live:app over natq, omniq")
        with SyncOmniqClient(url) as client:
            client.publish("leave", {"name": "mark"})
            while not (cli.folder / "mark").exists():
                time.sleep(0.02)

        assert [queue["name"] for queue in cli("queue", "ls", "--omniq", "--json").json] == [
            "leave"
        ]
        assert end(dev) == 0
    finally:
        dev.kill()
