"""``penstock doctor``: each thing that was looked at, and an exit code for programs."""

from __future__ import annotations

from typing import Any

from penstock.broker.embedded import EmbeddedNats
from penstock.broker.redis_embedded import EmbeddedRedis
from tests.cli.conftest import Cli

NOBODY = "127.0.0.1:1"


def looked_at(cli: Cli, *words: str, code: int = 0, **environ: str) -> dict[str, Any]:
    done = cli("doctor", "--json", *words, **environ)
    assert done.returncode == code, done.stdout + done.stderr
    return {check["what"]: check for check in done.json}


def test_a_machine_that_has_what_is_needed_is_told_so(cli: Cli) -> None:
    found = looked_at(cli)

    assert {check["state"] for check in found.values()} <= {"ok", "note"}
    assert {"Python", "settings", "nats-server", "embedded server", "Redis", "data folder"} <= set(
        found
    )
    assert "2." in found["nats-server"]["found"]
    assert cli("doctor").stdout.count("ok  ") >= 6


def test_servers_that_are_configured_are_asked(cli: Cli, server: EmbeddedNats) -> None:
    with EmbeddedRedis() as redis:
        found = looked_at(cli, "--nats", server.url, "--redis", redis.url)

    assert "JetStream API level" in found["NATS"]["found"]
    assert found["Redis"]["state"] == "ok"
    assert "ms away" in found["Redis"]["found"]


def test_a_server_that_is_not_there_is_bad_and_exit_3_and_the_rest_is_still_looked_at(
    cli: Cli,
) -> None:
    found = looked_at(cli, "--nats", f"nats://{NOBODY}", "--redis", f"redis://{NOBODY}", code=3)

    assert found["NATS"]["state"] == found["Redis"]["state"] == "bad"
    assert found["NATS"]["remedy"] and found["Redis"]["remedy"]
    assert found["data folder"]["state"] == "ok"


def test_a_missing_redis_program_matters_only_to_who_serves_omniq(cli: Cli) -> None:
    missing = {"PENSTOCK_REDIS_SERVER": "/no/such/redis-server"}

    assert looked_at(cli, **missing)["Redis"]["state"] == "note"
    (cli.folder / "penstock.toml").write_text("[omniq]\n")
    assert looked_at(cli, code=3, **missing)["Redis"]["state"] == "bad"


def test_a_variable_that_nobody_reads_is_a_note(cli: Cli) -> None:
    found = looked_at(cli, PENSTOCK_NATS_ULR="x", PENSTOCK_REDIS_SERVER="")["settings"]

    assert found["state"] == "note"
    assert "PENSTOCK_NATS_ULR" in found["remedy"]
    assert "REDIS" not in found["remedy"]
