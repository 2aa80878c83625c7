"""``penstock worker --omniq``: the handlers of an application on queues that others share."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.broker.probe import probe
from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.protocols.omniq.sync_client import SyncOmniqClient
from tests.cli.conftest import Cli, clean_environ

APP = """
import os
from pathlib import Path
from penstock import App, Context

app = App("shop")

@app.task
async def resize(image: str, width: int = 800) -> None:
    Path(f"{image}.{width}").touch()

@app.task(names={"omniq": "Reports"})
def report(ctx: Context, day: str) -> None:
    if ctx.saved is None:
        ctx.checkpoint({"day": day})
        raise RuntimeError("once")
    Path(f"report.{ctx.saved['day']}.{ctx.attempt}").touch()

@app.task(reply=True)
async def greet(name: str) -> str:
    return name
"""


@pytest.fixture
def redis_server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def shop(folder: Path) -> Cli:
    (folder / "shop.py").write_text(APP)
    return Cli(folder, clean_environ())


def test_an_application_is_served_over_omniq(shop: Cli, redis_server: EmbeddedRedis) -> None:
    worker = shop.start("worker", "shop:app", "--omniq", "--redis", redis_server.url)
    try:
        line = worker.wait_for("serving shop:app over omniq")
        assert redis_server.url in line
        with SyncOmniqClient(redis_server.url) as client:
            client.publish("resize", {"image": "a"})
            client.publish("resize", ["b", 5])
            bad = client.publish("resize", {"colour": 1})
            client.publish("Reports", {"day": "monday"}, backoff_ms=1)

            until_exists(shop.folder, "a.800", "b.5", "report.monday.2")
            worker.send(signal.SIGTERM)
            assert worker.ended() == 0, worker.said

            job = client.monitor.get_job("resize", bad)
            assert job is not None
            assert job.state == "failed"  # an input that never fits is not tried again
            assert (job.attempt, job.last_error[:9]) == (1, "BadInput:")
    finally:
        worker.kill()


def test_without_a_url_the_worker_brings_a_redis_that_goes_with_it(shop: Cli) -> None:
    worker = shop.start("worker", "shop:app", "--omniq", "--processes", "2")
    try:
        url = worker.wait_for("serving shop:app over omniq").split()[-1]
        assert worker.wait_for("serving shop:app over omniq").split()[-1] == url  # one for both
        with SyncOmniqClient(url) as client:
            client.publish("resize", {"image": "c"})
            until_exists(shop.folder, "c.800")
        worker.send(signal.SIGTERM)
        assert worker.ended() == 0, worker.said
        with (
            pytest.raises(Exception, match="answered"),
            SyncOmniqClient(url, timeout=0.5) as client,
        ):
            client.publish("resize", {"image": "d"})
    finally:
        worker.kill()


def test_several_protocols_at_once(shop: Cli, redis_server: EmbeddedRedis) -> None:
    worker = shop.start("worker", "shop:app", "--omniq", "--natq", "--redis", redis_server.url)
    try:
        line = worker.wait_for("serving shop:app over natq, omniq")
        nats_url = line.split()[-2].rstrip(",")
        assert shop("task", "call", "greet", "name=ann", "--nats", nats_url).json == "ann"
        with SyncOmniqClient(redis_server.url) as client:
            client.publish("resize", {"image": "e"})
            until_exists(shop.folder, "e.800")
        told = subject_count(int(nats_url.rpartition(":")[2]), "penstock.event.omniq.succeeded")
        assert told == 1  # lifecycle events go to NATS where there is one
        worker.send(signal.SIGTERM)
        assert worker.ended() == 0, worker.said
    finally:
        worker.kill()


def subject_count(port: int, subject: str) -> int:
    """How many messages the events' stream has under ``subject``, once there is one."""
    while True:
        info = msgspec.json.decode(
            probe(
                port,
                "$JS.API.STREAM.INFO.PENSTOCK_EVENTS",
                msgspec.json.encode({"subjects_filter": subject}),
            )
        )
        if counts := info.get("state", {}).get("subjects"):
            return int(counts[subject])
        time.sleep(0.02)


def test_a_worker_may_serve_some_queues_only(shop: Cli, redis_server: EmbeddedRedis) -> None:
    environ = {"PENSTOCK_REDIS_URL": redis_server.url, "PENSTOCK_OMNIQ__QUEUES": "Reports"}
    unknown = shop("worker", "shop:app", **{**environ, "PENSTOCK_OMNIQ__QUEUES": "Report"})
    worker = shop.start("worker", "shop:app", **environ)
    try:
        worker.wait_for("serving shop:app over omniq")
        with SyncOmniqClient(redis_server.url) as client:
            client.publish("resize", {"image": "f"})
            client.publish("Reports", {"day": "friday"}, backoff_ms=1)
            until_exists(shop.folder, "report.friday.2")
            assert client.monitor.counts("resize").wait == 1
        worker.send(signal.SIGTERM)
        assert worker.ended() == 0, worker.said
    finally:
        worker.kill()
    assert unknown.returncode == 4
    assert "'Reports'" in unknown.stderr


def test_two_tasks_cannot_share_a_queue(shop: Cli, redis_server: EmbeddedRedis) -> None:
    (shop.folder / "twice.py").write_text(
        "from penstock import App\napp = App('twice')\n"
        "@app.task(queue='q')\nasync def a(): ...\n"
        "@app.task(queue='q')\nasync def b(): ...\n"
    )

    ended = shop("worker", "twice:app", "--omniq", "--redis", redis_server.url)

    assert ended.returncode == 2
    assert "share the OmniQ queue 'q'" in ended.stderr


def until_exists(folder: Path, *names: str) -> None:
    """Wait for files that handlers leave; the test's own timeout is the deadline."""
    while not all((folder / name).exists() for name in names):
        time.sleep(0.02)
