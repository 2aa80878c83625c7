"""``penstock serve``: a job server in a process of its own, or in several on one port."""

from __future__ import annotations

import re
import signal
import socket
import time

import httpx

from tests.cli.conftest import Cli

JOB = {"type": "mail.send", "args": []}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def url_in(line: str) -> str:
    found = re.search(r"http://[0-9.:]+", line)
    assert found is not None, line
    return found[0]


def test_a_server_serves_and_leaves_cleanly(cli: Cli) -> None:
    server = cli.start("serve", "--ojs", "--http", "127.0.0.1:0")
    try:
        url = url_in(server.wait_for("serving ojs"))
        made = httpx.post(f"{url}/ojs/v1/jobs", json=JOB, timeout=30)
        assert made.status_code == 201
        assert httpx.get(f"{url}/ready", timeout=30).status_code == 200
        assert httpx.post(f"{url}/ojs/v1/admin/reset", timeout=30).status_code == 404
    finally:
        assert server.stop(signal.SIGTERM) == 0


def test_jobs_outlive_a_killed_server_and_its_broker(cli: Cli) -> None:
    command = ("serve", "--http", "127.0.0.1:0", "--data", "kept")
    first = cli.start(*command)
    url = url_in(first.wait_for("serving ojs"))
    job_id = httpx.post(f"{url}/ojs/v1/jobs", json=JOB, timeout=30).json()["job"]["id"]
    first.stop(signal.SIGKILL)

    second = cli.start(*command)
    try:
        url = url_in(second.wait_for("serving ojs"))
        fetched = httpx.post(
            f"{url}/ojs/v1/workers/fetch", json={"queues": ["default"]}, timeout=30
        )
        assert [job["id"] for job in fetched.json()["jobs"]] == [job_id]
    finally:
        second.stop(signal.SIGTERM)


def test_several_processes_share_one_port_and_one_truth(cli: Cli) -> None:
    port = free_port()
    server = cli.start("serve", "--http", f"127.0.0.1:{port}", "--processes", "2")
    try:
        server.wait_for("serving ojs")
        server.wait_for("serving ojs")
        url = f"http://127.0.0.1:{port}"
        queue = {"options": {"queue": "both"}}
        for _ in range(20):  # a connection each, so that both processes get some
            assert httpx.post(f"{url}/ojs/v1/jobs", json=JOB | queue, timeout=30).is_success
        stats = httpx.get(f"{url}/ojs/v1/queues/both/stats", timeout=30).json()
        assert stats["queue"]["available"] == 20
        body = {"queues": ["both"], "count": 20}
        jobs = httpx.post(f"{url}/ojs/v1/workers/fetch", json=body, timeout=30).json()["jobs"]
        assert len(jobs) == 20
    finally:
        server.stop(signal.SIGTERM)


def test_a_stopping_server_says_that_it_is_not_ready(cli: Cli) -> None:
    server = cli.start("serve", "--http", "127.0.0.1:0", PENSTOCK_HTTP__LINGER="60s")
    url = url_in(server.wait_for("serving ojs"))
    with httpx.Client(base_url=url, timeout=30) as http:
        server.send(signal.SIGTERM)
        end = time.monotonic() + 30
        while http.get("/ready").status_code == 200:
            assert time.monotonic() < end
        assert http.post("/ojs/v1/jobs", json=JOB).status_code == 201
    assert server.stop(signal.SIGTERM) == 0


def test_who_serves_the_network_needs_a_token(cli: Cli) -> None:
    open_to_all = cli("serve", "--http", "0.0.0.0:0")

    assert open_to_all.returncode == 2
    assert "no token is set" in open_to_all.stderr
    assert "Traceback" not in open_to_all.stderr


def test_a_busy_port_is_one_sentence(cli: Cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ended = cli("serve", "--http", f"127.0.0.1:{taken.getsockname()[1]}")

    assert ended.returncode == 3
    assert "cannot be served" in ended.stderr
    assert "Traceback" not in ended.stderr
