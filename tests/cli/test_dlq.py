"""``penstock dlq`` on dead letters that a real worker left."""

from __future__ import annotations

from tests.cli.conftest import Cli


def bury(cli: Cli, run_id: str) -> None:
    """A dead letter: `fail` has one attempt."""
    done = cli("task", "enqueue", "fail", "--run-id", run_id, "--wait")
    assert done.returncode == 1, done.stderr


def dead(cli: Cli) -> set[str]:
    return {one["work_id"] for one in cli("dlq", "ls", "fail", "--json").json}


def test_dead_letters_are_listed_shown_replayed_and_dropped(served: Cli) -> None:
    assert "no dead letters" in served("dlq", "ls").stderr
    for run_id in ("one", "two", "three"):
        bury(served, run_id)

    assert dead(served) == {"one", "two", "three"}
    assert "broken for good" in served("dlq", "ls").stdout
    assert served("dlq", "show", "fail", "one", "--json").json["state"] == "dead"
    assert "broken for good" in served("dlq", "show", "fail", "one").stdout

    rehearsed = served("dlq", "drop", "--all", "--dry-run")
    assert rehearsed.stdout.splitlines() == ["fail one", "fail two", "fail three"]
    assert "would be dropped: 3" in rehearsed.stderr
    assert dead(served) == {"one", "two", "three"}

    assert "dropped: 2" in served("dlq", "drop", "fail", "one", "two").stderr
    assert dead(served) == {"three"}

    assert "replayed: 1" in served("dlq", "replay", "fail", "--all").stderr
    again = served("task", "result", "fail", "three", "--timeout", "20s")
    assert "broken for good" in again.stderr
    assert dead(served) == {"three"}


def test_what_is_not_there_is_told_and_changes_nothing(served: Cli) -> None:
    unknown = served("dlq", "replay", "fail", "no-such-run")
    protocol = served("dlq", "ls", "--protocol", "natqq")

    assert unknown.returncode == 4
    assert "penstock dlq ls fail" in unknown.stderr
    assert protocol.returncode == 2
    assert "'natq'" in protocol.stderr
