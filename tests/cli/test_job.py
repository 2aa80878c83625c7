"""``penstock job`` and ``penstock schedule``: Open Job Spec by hand, straight on NATS."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.embedded import EmbeddedNats
from tests.cli.conftest import Cli, clean_environ

APP = """
from penstock import App

app = App("jobs")

@app.task
async def add(a: int, b: int) -> int:
    return a + b
"""


@pytest.fixture(scope="module")
def nats() -> Iterator[EmbeddedNats]:
    with EmbeddedNats() as server:
        yield server


@pytest.fixture
def ojs(nats: EmbeddedNats, folder: Path) -> Cli:
    (folder / "jobs_app.py").write_text(APP)
    return Cli(folder, clean_environ(PENSTOCK_NATS_URL=nats.url))


def test_a_job_is_enqueued_shown_cancelled_and_given_another_life(ojs: Cli) -> None:
    made = ojs("job", "enqueue", "mail.send", "to=ann", "--queue", "mail", "--priority", "7")
    job_id = made.stdout.strip()
    assert made.returncode == 0, made.stderr

    shown = ojs("job", "show", job_id, "--json").json
    assert (shown["state"], shown["priority"], shown["args"]) == ("available", 7, [{"to": "ann"}])
    assert job_id in ojs("job", "ls", "--type", "mail.send").stdout
    assert ojs("job", "cancel", job_id).returncode == 0
    again = ojs("job", "cancel", job_id)
    assert (again.returncode, "not cancelled" in again.stderr) == (1, True)
    assert ojs("job", "retry", job_id).returncode == 0
    assert ojs("job", "show", job_id, "--json").json["state"] == "available"
    assert ojs("job", "cancel", "--type", "mail.send").stderr.startswith("cancelled: 1")


def test_what_is_chosen_can_be_seen_before_it_is_done(ojs: Cli) -> None:
    ids = {ojs("job", "enqueue", "bulk.one").stdout.strip() for _ in range(3)}

    dry = ojs("job", "cancel", "--type", "bulk.one", "--dry-run")

    assert set(dry.stdout.split()) == ids
    assert ojs("job", "cancel", "--type", "bulk.one").stderr.startswith("cancelled: 3")
    nothing = ojs("job", "cancel")
    assert (nothing.returncode, "--type" in nothing.stderr) == (2, True)


def test_unknown_jobs_and_bad_input_are_told_in_a_sentence(ojs: Cli) -> None:
    missing = ojs("job", "show", "01a1f5d3-6b0b-7356-89fe-000000000000")
    assert (missing.returncode, "there is no job" in missing.stderr) == (4, True)
    state = ojs("job", "ls", "--state", "availble")
    assert (state.returncode, "available" in state.stderr) == (4, True)
    for bad in (
        ("job", "enqueue", "NO CAPS"),
        ("job", "enqueue", "a.b", "--args", "{}"),
        ("job", "enqueue", "a.b", "--priority", "1000"),
        ("schedule", "add", "x", "* * *", "a.b"),
        ("schedule", "preview", "99 * * * *"),
    ):
        ended = ojs(*bad)
        assert ended.returncode == 2, (bad, ended.stderr)
        assert "Traceback" not in ended.stderr


def test_a_worker_serves_jobs_and_their_life_can_be_told(ojs: Cli) -> None:
    worker = ojs.start("worker", "jobs_app:app", "--ojs")
    try:
        worker.wait_for("serving jobs_app:app over ojs")
        done = ojs("job", "enqueue", "add", "--args", "[1, 2]", "--wait")
        assert done.stdout.strip() == "3"
        job_id = done.stderr.split()[-1]
        events: list[str] = []
        while "job.completed" not in events:
            events = [one["type"] for one in ojs("job", "logs", job_id, "--json").json]
        assert events == ["job.enqueued", "job.started", "job.completed"]
    finally:
        assert worker.stop(signal.SIGTERM) == 0


def test_changes_are_watched(ojs: Cli) -> None:
    watching = ojs.start("job", "watch", "seen.one", "-n", "1", "--json")
    watching.wait_for("watching seen.one")
    job_id = ""
    while not watching.has_ended:
        job_id = ojs("job", "enqueue", "seen.one").stdout.strip()
    seen = json.loads(watching.said_last())
    assert (seen["name"], seen["state"]) == ("seen.one", "available")
    assert job_id


def test_crons_are_added_listed_previewed_and_removed(ojs: Cli) -> None:
    added = ojs("schedule", "add", "nightly", "0 3 * * *", "report.make", "--zone", "Asia/Tokyo")
    assert added.stderr.startswith("added nightly; next at")
    assert ojs("schedule", "add", "nightly", "@daily", "report.make").stderr.startswith("replaced")

    [row] = ojs("schedule", "ls", "--json").json
    assert (row["name"], row["expression"], row["enabled"]) == ("nightly", "@daily", True)
    assert "nightly" in ojs("schedule", "ls").stdout
    assert ojs("schedule", "rm", "nightly").returncode == 0
    assert ojs("schedule", "rm", "nightly").returncode == 4
    times = ojs("schedule", "preview", "0 9 * * *", "--zone", "Europe/Berlin", "-n", "2", "--json")
    assert [time[11:16] for time in times.json] == ["09:00", "09:00"]
