"""The embedded Redis: it comes up, says clearly when it cannot, and never outlives its owner."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.broker.redis_sync import SyncRedisLink
from penstock.core.errors import Problem


@pytest.fixture
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(aof="always") as running:
        yield running


def ask(server: EmbeddedRedis, *command: str | int) -> object:
    link = SyncRedisLink(server.url)
    try:
        return link.execute(*command)
    finally:
        link.close()


def becomes(condition: Callable[[], bool], within_s: float = 30.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_started_server_answers_and_its_temporary_folder_goes_with_it() -> None:
    server = EmbeddedRedis()
    with server:
        folder, pid = server.folder, server.pid
        assert ask(server, "SET", "a", "1") == b"OK"
        assert server.url == f"redis://127.0.0.1:{server.port}/0"

    assert not folder.exists()
    assert gone(pid)


async def test_it_can_be_used_as_an_asynchronous_context() -> None:
    async with EmbeddedRedis() as server:
        assert server.running
    assert not server.running


def test_start_and_stop_may_be_repeated() -> None:
    server = EmbeddedRedis()
    assert server.start().pid == server.start().pid
    server.stop()
    server.stop()
    server.start()
    assert server.running
    server.stop()


def test_a_named_folder_is_kept_and_opened_again(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path / "data") as server:
        ask(server, "SET", "a", "kept")

    with EmbeddedRedis(tmp_path / "data") as server:
        assert ask(server, "GET", "a") == b"kept"


def test_two_servers_never_share_a_folder(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path), pytest.raises(Problem, match="in use") as refused:
        EmbeddedRedis(tmp_path).start()

    assert refused.value.code == "redis.folder.in_use"


def test_a_restart_keeps_port_and_data(server: EmbeddedRedis) -> None:
    ask(server, "SET", "a", "1")
    port, pid = server.port, server.pid

    server.restart()

    assert (server.port, ask(server, "GET", "a")) == (port, b"1")
    assert server.pid != pid


def test_what_was_acknowledged_survives_a_killed_server(server: EmbeddedRedis) -> None:
    for number in range(50):
        ask(server, "RPUSH", "a", number)

    server.kill()
    assert not server.running
    server.restart()

    assert ask(server, "LLEN", "a") == 50


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = EmbeddedRedis(port=holder.getsockname()[1], start_timeout=5)

        with pytest.raises(Problem, match=str(holder.getsockname()[1])) as refused:
            taken.start()

    assert refused.value.code == "redis.start"
    assert not taken.running


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("echo 'Redis server v=5.0.3 sha=0'", "redis.binary.version", "6.2 or newer"),
        ("echo something else", "redis.binary.broken", "not a redis-server"),
    ],
)
def test_a_program_that_will_not_do_is_refused_before_it_gets_data(
    tmp_path: Path, text: str, code: str, words: str
) -> None:
    program = tmp_path / "redis-server"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)

    with pytest.raises(Problem, match=words) as refused:
        EmbeddedRedis(tmp_path / "data", binary=program).start()

    assert refused.value.code == code
    assert not (tmp_path / "data").exists()


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="does not exist"):
        EmbeddedRedis(binary=tmp_path / "nothing").start()


OWNER = """
import os, sys, time
from penstock.broker.redis_embedded import EmbeddedRedis
server = EmbeddedRedis(sys.argv[1] if len(sys.argv) > 1 else None).start()
print(server.pid, server.folder, flush=True)
time.sleep(600)
"""


def owner(*arguments: str) -> tuple[subprocess.Popen[str], int, Path]:
    command = [sys.executable, "-c", OWNER, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid, folder = process.stdout.readline().split()
    return process, int(pid), Path(folder)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_dies_with_its_owner_however_that_dies(number: int) -> None:
    process, pid, folder = owner()

    process.send_signal(number)
    process.communicate()

    assert becomes(lambda: gone(pid))
    assert becomes(lambda: not folder.exists())


def test_a_named_folder_outlives_a_killed_owner(tmp_path: Path) -> None:
    process, pid, _ = owner(str(tmp_path / "data"))

    process.kill()
    process.communicate()

    assert becomes(lambda: gone(pid))
    with EmbeddedRedis(tmp_path / "data") as server:
        assert ask(server, "PING") == b"PONG"


def test_a_frozen_server_dies_with_its_owner_too() -> None:
    process, pid, _ = owner()
    os.kill(pid, signal.SIGSTOP)

    process.kill()
    process.communicate()

    assert becomes(lambda: gone(pid))


def test_a_forked_child_neither_keeps_nor_ends_the_server(server: EmbeddedRedis) -> None:
    child = os.fork()
    if child == 0:
        server.stop()  # must not be ours to stop
        os._exit(0)
    os.waitpid(child, 0)

    assert server.running
    assert ask(server, "PING") == b"PONG"
