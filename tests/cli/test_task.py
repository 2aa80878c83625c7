"""``penstock task`` against a real server and a real worker."""

from __future__ import annotations

import json
import signal

import pytest

from penstock.broker.embedded import EmbeddedNats
from tests.cli.conftest import Cli


def test_ls_shows_announced_tasks_as_a_table_and_as_json(served: Cli) -> None:
    table = served("task", "ls").stdout
    listed = served("task", "ls", "--json").json

    greet = next(line for line in table.splitlines() if line.startswith(("greet", " greet")))
    assert greet.split() == ["greet", "sync", "natq.req.greet", "name", "[times]"]
    assert {one["id"]: one["type"] for one in listed} == {
        "greet": "sync",
        "refuse": "sync",
        "never": "sync",
        "double": "async",
        "sink": "async",
        "fail": "async",
    }


def test_show_tells_a_tasks_schema(served: Cli) -> None:
    found = served("task", "show", "greet", "--json").json

    assert json.loads(found["inputSchema"])["required"] == ["name"]
    assert "natq.req.greet" in served("task", "show", "greet").stdout


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [
        (["name=ann", "times=2"], ""),
        (["--json", '{"name": "ann", "times": 2}'], ""),
        (["-"], '{"name": "ann", "times": 2}'),
    ],
)
def test_call_prints_the_answer_as_json(served: Cli, arguments: list[str], stdin: str) -> None:
    done = served("task", "call", "greet", *arguments, stdin=stdin)

    assert done.json == "hello ann hello ann"
    assert (done.returncode, done.stderr) == (0, "")


def test_a_task_that_answers_with_an_error_is_exit_1_and_its_data_is_printed(served: Cli) -> None:
    done = served("task", "call", "refuse")

    assert done.returncode == 1
    assert "422: not today" in done.stderr
    assert done.json == {"why": "tuesday"}


def test_an_input_that_does_not_fit_is_told_with_the_field(served: Cli) -> None:
    done = served("task", "call", "greet", "name=ann", "times=often")

    assert done.returncode == 1
    assert "times" in done.stderr


@pytest.mark.parametrize("verb", ["call", "enqueue", "show"])
def test_an_unknown_task_is_exit_4_with_the_nearest(served: Cli, verb: str) -> None:
    done = served("task", verb, "duoble")

    assert done.returncode == 4
    assert "'double'" in done.stderr


@pytest.mark.parametrize(
    ("verb", "task", "hint"), [("call", "double", "enqueue"), ("enqueue", "greet", "call")]
)
def test_a_task_of_the_other_kind_is_exit_2_with_the_right_verb(
    served: Cli, verb: str, task: str, hint: str
) -> None:
    done = served("task", verb, task)

    assert done.returncode == 2
    assert hint in done.stderr


def test_an_answer_that_does_not_come_is_exit_5(served: Cli) -> None:
    done = served("task", "call", "never", "--timeout", "200ms")

    assert done.returncode == 5
    assert "Traceback" not in done.stderr


def test_enqueue_prints_a_run_id_with_which_the_result_is_had(served: Cli) -> None:
    run_id = served("task", "enqueue", "double", "number=21").stdout.strip()

    assert served("task", "result", "double", run_id, "--timeout", "20s").json == {"doubled": 42}
    assert served("task", "result", "double", run_id).json == {"doubled": 42}


def test_enqueue_and_wait_prints_the_result_and_a_second_one_is_the_same_run(served: Cli) -> None:
    arguments = ("task", "enqueue", "double", "number=4", "--run-id", "once", "--wait")

    first, second = served(*arguments), served(*arguments)

    assert first.json == second.json == {"doubled": 8}
    assert "already" in second.stderr
    assert "already" not in first.stderr


def test_a_run_that_failed_is_exit_1(served: Cli) -> None:
    done = served("task", "enqueue", "sink", "--wait")

    assert done.returncode == 1
    assert "can never work" in done.stderr


def test_a_result_nobody_knows_of_is_exit_4_and_waiting_for_it_exit_5(served: Cli) -> None:
    assert served("task", "result", "double", "no-such-run").returncode == 4
    assert served("task", "result", "double", "no-such", "--timeout", "200ms").returncode == 5


def test_a_job_for_a_task_nobody_announced_needs_force(served: Cli) -> None:
    forced = served("task", "enqueue", "later_on", "--force")

    assert served("task", "enqueue", "later_on").returncode == 4
    assert forced.returncode == 0
    assert served("task", "result", "later_on", forced.stdout.strip()).returncode == 4


def test_watch_prints_runs_as_they_change_and_ends_by_ctrl_c_with_130(served: Cli) -> None:
    watching = served.start("task", "watch", "double", "--json", PYTHONUNBUFFERED="1")
    try:
        watching.wait_for("watching")
        served("task", "enqueue", "double", "number=5", "--run-id", "seen")
        line = watching.wait_for('"succeeded"')
        watching.send(signal.SIGINT)

        assert json.loads(line)["work_id"] == "seen"
        assert watching.ended() == 130
    finally:
        watching.kill()


def test_a_known_task_that_nobody_serves_any_more_is_exit_3(
    server: EmbeddedNats, served: Cli
) -> None:
    (served.folder / "other_app.py").write_text(
        "from penstock import App\n\napp = App('other')\n\n"
        "@app.task(reply=True)\nasync def fleeting() -> int:\n    return 1\n"
    )
    leaving = served.start("worker", "other_app:app")
    leaving.wait_for("serving other_app:app")
    leaving.send(signal.SIGTERM)
    assert leaving.ended() == 0

    done = served("task", "call", "fleeting")

    assert done.returncode == 3
    assert "penstock worker" in done.stderr
