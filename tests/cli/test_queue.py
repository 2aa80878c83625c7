"""``penstock queue``: OmniQ queues as an operator sees and mends them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.redis_embedded import EmbeddedRedis
from penstock.protocols.omniq.sync_client import SyncOmniqClient
from penstock.protocols.omniq.wire import ReservedJob
from tests.cli.conftest import Cli, clean_environ


@pytest.fixture(scope="module")
def redis_server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def client(redis_server: EmbeddedRedis) -> Iterator[SyncOmniqClient]:
    with SyncOmniqClient(redis_server.url) as made:
        made.port().execute("FLUSHALL")
        yield made


@pytest.fixture
def omniq(redis_server: EmbeddedRedis, folder: Path) -> Cli:
    """With a section in the settings, so that --omniq need not be said each time."""
    (folder / "penstock.toml").write_text("[omniq]\n")
    return Cli(folder, clean_environ(PENSTOCK_REDIS_URL=redis_server.url))


def fail_all(client: SyncOmniqClient, queue: str) -> None:
    while isinstance(job := client.reserve(queue), ReservedJob):
        client.ack_fail(queue, job.job_id, job.lease_token, "ValueError: no")


def test_queues_are_listed_with_what_is_in_them(omniq: Cli, client: SyncOmniqClient) -> None:
    assert omniq("queue", "ls").stderr.strip() == "no queues"
    client.publish_many("mail", [{}, {}])
    client.publish("mail", {}, gid="g")
    client.publish("later", {}, due_ms=client.now_ms() + 60_000)
    client.pause("later")

    listed = {one["name"]: one for one in omniq("queue", "ls", "--json").json}
    table = omniq("queue", "ls").stdout

    assert (listed["mail"]["waiting"], listed["mail"]["paused"]) == (3, False)
    assert (listed["later"]["delayed"], listed["later"]["paused"]) == (1, True)
    assert "mail" in table
    assert "later" in table
    one = omniq("queue", "stats", "mail", "--json").json
    assert one["detail"]["waiting_in_groups"] == 1
    assert "groups_ready" in omniq("queue", "stats", "mail").stdout


def test_a_queue_is_paused_and_resumed(omniq: Cli, client: SyncOmniqClient) -> None:
    client.publish("mail", {})

    assert "mail paused" in omniq("queue", "pause", "mail").stderr
    assert client.is_paused("mail")
    assert "was paused already" in omniq("queue", "pause", "mail").stderr
    assert "mail resumed" in omniq("queue", "resume", "mail").stderr
    assert "was not paused" in omniq("queue", "resume", "mail").stderr


def test_jobs_are_listed_and_shown(omniq: Cli, client: SyncOmniqClient) -> None:
    client.publish("mail", {"to": "ann"}, job_id="one", max_attempts=1)
    fail_all(client, "mail")
    client.publish("mail", {}, job_id="two", gid="g")

    listed = omniq("queue", "jobs", "mail", "--json").json
    failed = omniq("queue", "jobs", "mail", "--state", "failed")
    shown = omniq("queue", "show", "mail", "one", "--json").json

    assert [(job["work_id"], job["state"]) for job in listed] == [
        ("two", "wait"),
        ("one", "failed"),
    ]
    assert "ValueError: no" in failed.stdout
    assert "two" not in failed.stdout
    assert shown["detail"]["payload"] == {"to": "ann"}
    assert '{"to":"ann"}' in omniq("queue", "show", "mail", "one").stdout
    few = omniq("queue", "jobs", "mail", "--limit", "1")
    assert "more than 1" in few.stderr


def test_failed_jobs_are_retried_one_or_all(omniq: Cli, client: SyncOmniqClient) -> None:
    client.publish_many("mail", [{} for _ in range(230)], max_attempts=1)
    fail_all(client, "mail")
    first = client.monitor.sample_failed("mail", limit=1)[0].job_id

    assert "retried: 1" in omniq("queue", "retry", "mail", first).stderr
    again = omniq("queue", "retry", "mail", first)
    everything = omniq("queue", "retry", "mail", "--all")

    assert again.returncode == 1
    assert "NOT_FAILED" in again.stderr
    assert "retried: 229" in everything.stderr
    assert client.monitor.counts("mail").wait == 230


def test_jobs_are_removed_from_wherever_they_stand(omniq: Cli, client: SyncOmniqClient) -> None:
    client.publish("mail", {}, job_id="wait")
    client.publish("mail", {}, job_id="grouped", gid="g")
    client.publish("mail", {}, job_id="later", due_ms=client.now_ms() + 60_000)
    client.publish("mail", {}, job_id="runs", gid="h")
    taken = client.reserve("mail")
    assert isinstance(taken, ReservedJob)
    others = {"wait", "grouped", "later", "runs"} - {taken.job_id}

    removed = omniq("queue", "rm", "mail", "nobody", *sorted(others), taken.job_id)

    assert removed.returncode == 1
    assert "removed: 3" in removed.stderr
    assert f"{taken.job_id}: ACTIVE" in removed.stderr
    assert "nobody: NO_JOB" in removed.stderr
    assert omniq("queue", "rm", "mail", "--all").returncode == 2
    client.publish_many("mail", [{}, {}])
    assert "removed: 2" in omniq("queue", "rm", "mail", "--all", "--state", "wait").stderr


def test_rebuild_mends_groups_and_the_mirrors_of_sdk_4(
    omniq: Cli, client: SyncOmniqClient, redis_server: EmbeddedRedis
) -> None:
    with SyncOmniqClient(redis_server.url, compat="v4") as v4:
        v4.publish("mail", {}, job_id="x", gid="g")
        v4.publish("mail", {}, job_id="y")
    port = client.port()
    port.execute("SET", "{mail}:g:g:inflight", "7")
    port.execute("ZREM", "{mail}:groups:ready", "g")
    port.execute("DEL", "{mail}:idx:wait")
    port.execute("HSET", "{mail}:stats", "waiting", "99")

    told = omniq("queue", "rebuild", "mail").stderr

    assert "1 groups mended" in told
    assert "2 jobs indexed" in told
    with SyncOmniqClient(redis_server.url, compat="v4") as v4:
        stats = v4.monitor.stats("mail")
        assert (stats.waiting, stats.group_waiting, stats.groups_ready) == (1, 1, 1)
        assert {job.job_id for job in v4.monitor.lane_page("mail", "wait")} == {"x", "y"}


def test_names_that_are_not_there_are_told_with_the_nearest(
    omniq: Cli, client: SyncOmniqClient
) -> None:
    client.publish("mail", {})

    queue = omniq("queue", "stats", "mial")
    job = omniq("queue", "show", "mail", "nobody")
    state = omniq("queue", "jobs", "mail", "--state", "waiting")

    assert (queue.returncode, job.returncode, state.returncode) == (4, 4, 4)
    assert "'mail'" in queue.stderr
    assert "penstock queue jobs mail" in job.stderr
    assert "'wait'" in state.stderr


def test_dead_letters_of_omniq_are_its_failed_jobs(omniq: Cli, client: SyncOmniqClient) -> None:
    client.publish("mail", {}, job_id="one", max_attempts=1)
    client.publish("mail", {}, job_id="two", max_attempts=1)
    fail_all(client, "mail")

    listed = omniq("dlq", "ls", "mail", "--protocol", "omniq", "--json").json
    replayed = omniq("dlq", "replay", "mail", "one", "--protocol", "omniq")
    dropped = omniq("dlq", "drop", "mail", "--all", "--protocol", "omniq")

    assert {one["work_id"] for one in listed} == {"one", "two"}
    assert "replayed: 1" in replayed.stderr
    assert "dropped: 1" in dropped.stderr
    counts = client.monitor.counts("mail")
    assert (counts.wait, counts.failed) == (1, 0)


def test_a_natq_queue_is_seen_by_the_same_command(served: Cli) -> None:
    listed = served("queue", "ls", "--natq", "--json").json

    assert "double" in {one["name"] for one in listed}
    refused = served("queue", "pause", "double")
    assert refused.returncode == 2
    assert "natq has no way to pause" in refused.stderr


def test_without_a_redis_the_way_to_one_is_named(cli: Cli) -> None:
    ended = cli("queue", "ls", "--omniq")

    assert ended.returncode == 3
    assert "--redis" in ended.stderr
