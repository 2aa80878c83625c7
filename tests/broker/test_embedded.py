"""The embedded server: it comes up, says clearly when it cannot, and never outlives its owner."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pytest

from penstock.broker.binary import find_nats_server
from penstock.broker.embedded import EmbeddedNats, ServerLimits
from penstock.broker.probe import ProbeRefused, probe
from penstock.core.errors import Problem


def create_stream(server: EmbeddedNats) -> None:
    answer = probe(
        server.port, "$JS.API.STREAM.CREATE.WORK", b'{"name":"WORK","subjects":["work.>"]}'
    )
    assert b"error" not in answer


def publish(server: EmbeddedNats, text: str) -> int:
    return int(msgspec.json.decode(probe(server.port, "work.a", text.encode()))["seq"])


def stored(server: EmbeddedNats) -> int:
    info = msgspec.json.decode(probe(server.port, "$JS.API.STREAM.INFO.WORK"))
    return int(info["state"]["messages"])


def becomes(condition: Callable[[], bool], within: float = 10.0) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


def program(folder: Path, text: str, mode: int = 0o755) -> Path:
    path = folder / "nats-server"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return path


def test_a_started_server_answers_and_its_temporary_store_goes_with_it() -> None:
    server = EmbeddedNats()
    with server:
        store, pid = server.store, server.pid
        assert b"api" in probe(server.port, "$JS.API.INFO")
        assert server.url == f"nats://127.0.0.1:{server.port}"

    assert not store.parent.exists()
    assert not psutil.pid_exists(pid)
    assert "Server Exiting" in server.log_tail()


async def test_it_can_be_used_as_an_asynchronous_context() -> None:
    async with EmbeddedNats() as server:
        assert server.running
    assert not server.running


def test_start_and_stop_may_be_repeated() -> None:
    server = EmbeddedNats()
    assert server.start().pid == server.start().pid
    server.stop()
    server.stop()
    server.start()
    assert server.running
    server.stop()


def test_a_named_store_is_kept_and_opened_again(tmp_path: Path) -> None:
    with EmbeddedNats(tmp_path / "data") as server:
        create_stream(server)
        publish(server, "one")

    with EmbeddedNats(tmp_path / "data") as server:
        assert publish(server, "two") == 2


def test_a_restart_keeps_port_and_messages(fresh_nats: EmbeddedNats) -> None:
    create_stream(fresh_nats)
    publish(fresh_nats, "one")
    port, pid = fresh_nats.port, fresh_nats.pid

    fresh_nats.restart()

    assert (fresh_nats.port, stored(fresh_nats)) == (port, 1)
    assert fresh_nats.pid != pid


def test_what_was_acknowledged_survives_a_killed_server(fresh_nats: EmbeddedNats) -> None:
    create_stream(fresh_nats)
    for number in range(50):
        publish(fresh_nats, str(number))

    fresh_nats.kill()
    assert not fresh_nats.running
    fresh_nats.restart()

    assert stored(fresh_nats) == 50


def test_a_frozen_server_is_silent_until_resumed(fresh_nats: EmbeddedNats) -> None:
    fresh_nats.pause()
    with pytest.raises(OSError):
        probe(fresh_nats.port, "$JS.API.INFO", timeout=0.1)

    fresh_nats.resume()

    assert probe(fresh_nats.port, "$JS.API.INFO")


def test_a_frozen_server_can_be_stopped() -> None:
    server = EmbeddedNats().start()
    server.pause()
    started_at = time.monotonic()

    server.stop()

    assert time.monotonic() - started_at < 4  # by SIGTERM, before the grace is over


def test_one_store_is_never_opened_twice(tmp_path: Path) -> None:
    with EmbeddedNats(tmp_path):
        with pytest.raises(Problem, match="in use by another") as refused:
            EmbeddedNats(tmp_path).start()
        assert refused.value.code == "nats.store.in_use"

    with EmbeddedNats(tmp_path) as later:
        assert later.running


def test_limits_and_extra_configuration_reach_the_server() -> None:
    limits = ServerLimits(max_payload=4096, max_file_store=10_000_000, sync_interval="1s")
    with EmbeddedNats(limits=limits, config="max_connections: 7") as server:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            info = msgspec.json.decode(connection.makefile("rb").readline()[5:])
        account = msgspec.json.decode(probe(server.port, "$JS.API.INFO"))

    assert info["max_payload"] == 4096
    assert account["limits"]["max_storage"] in (-1, 10_000_000)


def test_a_password_closes_the_server_to_strangers() -> None:
    with EmbeddedNats(user="ann", password="s:e/c") as server:
        assert server.url.startswith("nats://ann:s%3Ae%2Fc@127.0.0.1:")
        with pytest.raises(ProbeRefused):
            probe(server.port, "$JS.API.INFO")


def test_users_of_the_callers_own_configuration_do_not_prevent_readiness() -> None:
    with EmbeddedNats(config='authorization { users: [{user: "a", password: "b"}] }') as server:
        assert server.running


def test_a_broken_configuration_is_one_sentence_with_the_servers_own_words() -> None:
    with pytest.raises(Problem, match=r"ended at start with code 1; it said: .*Parse error"):
        EmbeddedNats(config="rubbish {").start()


def test_a_busy_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        busy = EmbeddedNats(port=other.getsockname()[1])
        with pytest.raises(Problem, match="is in use by another program"):
            busy.start()


def test_a_missing_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_NATS_SERVER", str(tmp_path / "nowhere"))
    with pytest.raises(Problem, match="nowhere does not exist"):
        EmbeddedNats().start()


def test_a_program_that_may_not_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="is not executable"):
        EmbeddedNats(binary=program(tmp_path, "exit 0", mode=0o644)).start()


def test_an_old_program_is_refused_before_it_opens_a_store(tmp_path: Path) -> None:
    old = program(tmp_path, "echo 'nats-server: v2.10.29'")
    with pytest.raises(Problem, match=r"is nats-server 2\.10\.29; Penstock needs 2\.14"):
        EmbeddedNats(tmp_path / "store", binary=old).start()
    assert not (tmp_path / "store").exists()


def test_a_program_that_is_no_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="is not a nats-server; it answered 'hello'"):
        EmbeddedNats(binary=program(tmp_path, "echo hello")).start()


def test_a_server_that_never_gets_ready_is_given_up_and_killed(tmp_path: Path) -> None:
    script = 'case "$1" in --version) echo "nats-server: v2.15.0";; *) exec sleep 60;; esac'
    server = EmbeddedNats(binary=program(tmp_path, script), start_timeout=0.2)
    with pytest.raises(Problem, match="was not ready after"):
        server.start()
    assert not server.running


def test_the_program_is_found_in_this_environment() -> None:
    assert find_nats_server().name == "nats-server"


def test_it_outlives_the_thread_that_started_it() -> None:
    server = EmbeddedNats()
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()

    with server:
        for _ in range(20):
            assert probe(server.port, "$JS.API.INFO")


OWNER = """
import os, sys, time
from penstock.broker.embedded import EmbeddedNats
server = EmbeddedNats(*sys.argv[2:]).start()
child = 0
if sys.argv[1] == "forks":
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
print(server.pid, child, server.store, flush=True)
time.sleep(60)
"""


def owner(*arguments: str) -> tuple[subprocess.Popen[str], int, int, Path]:
    """A process that owns an embedded server: process, server pid, pid of its fork, store."""
    command = [sys.executable, "-c", OWNER, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    server, child, store = process.stdout.readline().split(maxsplit=2)
    return process, int(server), int(child), Path(store.strip())


def crash(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_it_dies_with_a_killed_owner_and_clears_up() -> None:
    process, server, _, store = owner("alone")
    assert store.exists() and psutil.pid_exists(server)

    crash(process)

    assert becomes(lambda: not psutil.pid_exists(server))
    assert becomes(lambda: not store.parent.exists())


def test_a_frozen_server_dies_with_its_owner_too() -> None:
    process, server, _, _ = owner("alone")
    os.kill(server, signal.SIGSTOP)

    crash(process)

    assert becomes(lambda: not psutil.pid_exists(server))


def test_a_fork_of_the_owner_does_not_keep_the_server_alive() -> None:
    process, server, child, _ = owner("forks")
    try:
        crash(process)
        assert becomes(lambda: not psutil.pid_exists(server))
        assert psutil.pid_exists(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_the_store_of_a_killed_owner_can_be_opened_at_once(tmp_path: Path) -> None:
    process, _, _, _ = owner("alone", str(tmp_path))
    crash(process)

    with EmbeddedNats(tmp_path) as server:
        assert server.running


def test_what_follows_a_pause_meets_a_frozen_server(fresh_nats: EmbeddedNats) -> None:
    for _ in range(20):
        fresh_nats.pause()
        threads = psutil.Process(fresh_nats.pid).threads()
        assert {psutil.Process(thread.id).status() for thread in threads} == {"stopped"}
        fresh_nats.resume()
