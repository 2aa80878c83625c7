"""What the command does before it does anything: help, versions, settings, mistakes."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

from penstock.cli.root import COMMANDS
from tests.cli.conftest import Cli, clean_environ

HEAVY = ("penstock.broker", "penstock.web", "penstock.runtime", "penstock.protocols", "nats")
HEAVY += ("redis", "pyspark", "rich", "asyncio", "uvloop")


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after ``code``."""
    program = f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"
    return set(_python(program).stderr.split())


def _python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=clean_environ(),
        check=False,
    )


@pytest.mark.parametrize(
    "code",
    [
        "import penstock",
        "import penstock.cli\ntry: penstock.cli.main(['--help'])\nexcept SystemExit: pass",
        "import penstock.cli\ntry: penstock.cli.main(['nonsense'])\nexcept SystemExit: pass",
    ],
)
def test_starting_loads_neither_broker_nor_web_nor_spark_nor_redis(code: str) -> None:
    loaded = loaded_by(code)

    assert "penstock" in loaded
    assert {name for name in loaded if name.split(".")[0] in HEAVY or name in HEAVY} == set()


def test_help_costs_less_than_150_ms_of_cpu(cli: Cli) -> None:
    program = (
        "import time, sys, penstock.cli\n"
        "try: penstock.cli.main(['--help'])\n"
        "except SystemExit: print(time.process_time(), file=sys.stderr)"
    )

    assert min(float(_python(program).stderr) for _ in range(3)) < 0.15


@pytest.mark.parametrize("name", COMMANDS)
def test_each_summary_in_the_root_help_is_what_the_command_says_of_itself(name: str) -> None:
    command = getattr(import_module(f"penstock.cli.{name}"), name)

    assert isinstance(command, click.Command)
    assert command.help and command.short_help == COMMANDS[name]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["wroker"], "'worker'"),
        (["task", "enqeue"], "'enqueue'"),
        (["task", "call", "greet", "--timeuot", "1s"], "--timeout"),
        (["worker", "a:b", "--concurency", "1"], "--concurrency"),
        (["task", "call", "greet", "--timeout", "soon"], "30s"),
        (["worker", "a:b", "--concurrency", "many"], "number"),
        (["completion", "tcsh"], "bash"),
        (["dlq", "replay"], "--all"),
        (["task", "enqueue", "x", "--wait", "--drop-result"], "--wait"),
    ],
)
def test_a_wrong_command_line_is_exit_2_with_what_was_meant(
    cli: Cli, arguments: list[str], hint: str
) -> None:
    done = cli(*arguments)

    assert done.returncode == 2
    assert hint in done.stderr
    assert "Traceback" not in done.stderr


def test_version_tells_what_penstock_stands_on(cli: Cli) -> None:
    assert cli("--version").stdout.startswith("penstock ")
    found = cli("version", "--json").json

    assert found["nats-server"].startswith("2.")
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "nats-server" in cli("version").stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(cli: Cli, shell: str) -> None:
    done = cli("completion", shell)

    assert done.returncode == 0
    assert "_PENSTOCK_COMPLETE" in done.stdout


def test_completion_completes_commands(cli: Cli) -> None:
    done = cli(_PENSTOCK_COMPLETE="bash_complete", COMP_WORDS="penstock ta", COMP_CWORD="1")

    assert done.stdout.split(",")[-1].strip() == "task"


def test_config_show_tells_each_origin_and_masks_secrets(cli: Cli, folder: Path) -> None:
    (folder / "penstock.toml").write_text("[worker]\ngrace = '5s'\n[nats]\ntoken = 'hush'\n")

    done = cli("config", "show", "--origin", "--nats", "nats://a:hush@h", PENSTOCK_EVENTS="no")
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.strip()}

    assert rows["worker.grace"] == ["5s", "penstock.toml:2"]
    assert rows["nats.url"] == ["nats://a:********@h", "--nats"]
    assert rows["nats.token"] == ["********", "penstock.toml:4"]
    assert rows["events"] == ["no", "PENSTOCK_EVENTS"]
    assert rows["log.level"] == ["info", "default"]
    assert "hush" not in done.stdout + done.stderr


def test_config_show_for_programs_and_only_what_changed(cli: Cli) -> None:
    done = cli("config", "show", "--json", "--origin", "--changed", PENSTOCK_DATA="state")

    assert done.json == {"data": {"value": "state", "origin": "PENSTOCK_DATA"}}


def test_a_wrong_setting_is_exit_2_with_file_line_and_the_nearest_name(
    cli: Cli, folder: Path
) -> None:
    (folder / "own.toml").write_text("[nats]\n\nulr = 'nats://x'\n")

    done = cli("task", "ls", "--config", "own.toml")

    assert done.returncode == 2
    assert "own.toml:3" in done.stderr
    assert "'nats.url'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_variable_that_nobody_reads_is_told(cli: Cli) -> None:
    assert "PENSTOCK_NATS_URL?" in cli("config", "show", PENSTOCK_NATS_ULR="x").stderr


def test_without_a_server_the_error_names_the_three_ways_out(cli: Cli) -> None:
    done = cli("task", "ls")

    assert done.returncode == 3
    assert done.stdout == ""
    assert all(way in done.stderr for way in ("--nats", "PENSTOCK_NATS_URL", "penstock dev"))


def test_a_server_that_is_not_there_is_exit_3_in_one_message(cli: Cli) -> None:
    done = cli("task", "ls", "--nats", "nats://127.0.0.1:1")

    assert done.returncode == 3
    assert done.stderr.startswith(
        "error: no NATS server answers at 127.0.0.1:1: Connection refused"
    )
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback(cli: Cli) -> None:
    done = cli("task", "ls", PENSTOCK_DEBUG="1")

    assert "Traceback" in done.stderr
    assert done.returncode == 3
