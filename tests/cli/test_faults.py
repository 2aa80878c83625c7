"""What people do to a command line: every fault is one message with a remedy, never a traceback."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from penstock.broker.embedded import EmbeddedNats
from penstock.cli.exits import Exit, run
from tests.cli.conftest import DEADLINE_S, Cli, Ended

MODULE = "from penstock import App\n\napp = App('faulty')\n\n\n"


def told(done: Ended) -> str:
    """What it said of a fault: one message and at most one remedy."""
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stderr.lower().count("error:") == 1, done.stderr
    assert done.stderr.count("  try: ") <= 1, done.stderr
    return done.stderr


# Applications -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fault", "hint"),
    [
        ("@app.task(retires=3)\ndef a() -> None: ...\n", "no option 'retires'", "'retries'"),
        ("@app.task(name='No.Dots')\ndef a() -> None: ...\n", "'No.Dots'", "lower-case"),
        ("@app.task(timeout='soon')\ndef a() -> None: ...\n", "'soon'", "30s"),
        (
            "@app.task\ndef a() -> None: ...\n@app.task(name='a')\ndef b() -> None: ...\n",
            "two tasks are called 'a'",
            "another name=",
        ),
        ("@app.task(names={'osj': 'x'})\ndef a() -> None: ...\n", "'osj'", "'ojs'"),
        ("", "declares no tasks", "@app.task"),
        ("other = App('My App')\n", "'My App' cannot be the name", "lower-case"),
    ],
)
def test_a_wrong_declaration_is_shown_at_the_users_own_line(
    cli: Cli, folder: Path, text: str, fault: str, hint: str
) -> None:
    (folder / "faulty.py").write_text(MODULE + text)

    done = cli("worker", "faulty:app")

    assert done.returncode == 2
    assert fault in told(done)
    assert hint in done.stderr.partition("  try: ")[2]
    assert "penstock/core" not in done.stderr


# Servers ------------------------------------------------------------------------------------


def a_program(folder: Path, said: str) -> str:
    path = folder / "some-server"
    path.write_text(f"#!/bin/sh\necho '{said}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("said", "fault"),
    [("nats-server: v2.9.25", "2.9.25; Penstock needs 2.1"), ("hello", "is not a nats-server")],
)
def test_a_server_program_that_will_not_do_is_named(
    cli: Cli, folder: Path, said: str, fault: str
) -> None:
    done = cli("worker", "sample_app:app", PENSTOCK_NATS_SERVER=a_program(folder, said))

    assert done.returncode == 3
    assert fault in told(done)


def test_a_server_program_that_is_not_there_is_named(cli: Cli) -> None:
    done = cli("dev", "sample_app:app", PENSTOCK_NATS_SERVER="/no/such/nats-server")

    assert done.returncode == 3
    assert "/no/such/nats-server does not exist" in told(done)


def test_a_server_without_jetstream_is_told_how_to_have_it(cli: Cli, folder: Path) -> None:
    program = Path(sys.executable).with_name("nats-server")
    ports = folder / "ports"
    ports.mkdir()
    with subprocess.Popen(
        [program, "-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", ports]
    ) as it:
        try:
            while not (found := [*ports.glob("*.ports")]) or not found[0].read_text():
                assert it.poll() is None
            url = found[0].read_text().split('"nats":')[1].split('"')[1]
            done = cli("task", "ls", "--nats", url)
        finally:
            it.terminate()

    assert done.returncode == 3
    assert "JetStream is not enabled" in told(done)
    assert "jetstream {}" in done.stderr


def test_a_busy_port_is_one_sentence(cli: Cli, server: EmbeddedNats) -> None:
    done = cli("dev", "sample_app:app", "--port", str(server.port))

    assert done.returncode == 3
    assert f"port {server.port} of 127.0.0.1 is in use" in told(done)


@pytest.mark.parametrize("port", ["99999", "-1", "http"])
def test_a_port_that_cannot_be_is_refused(cli: Cli, port: str) -> None:
    assert "--port" in told(cli("dev", "sample_app:app", "--port", port))


def test_a_folder_that_cannot_be_made_is_named(cli: Cli, folder: Path) -> None:
    (folder / "file").touch()

    done = cli("worker", "sample_app:app", "--data", "file")

    assert done.returncode == 3
    assert "file/nats" in told(done)


def test_a_folder_to_watch_that_is_not_there_is_named(cli: Cli) -> None:
    done = cli("dev", "sample_app:app", "--watch", "nowhere")

    assert done.returncode == 2
    assert "'nowhere' does not exist" in told(done)


@pytest.mark.parametrize(
    "url", ["foo://h:1", "nats://h:99999", "nats://:", "http://h", "nats://no-such-host.invalid"]
)
def test_an_address_that_will_not_do_is_one_message(cli: Cli, url: str) -> None:
    done = cli("worker", "sample_app:app", "--nats", url)

    assert done.returncode in (2, 3)
    assert "  try: " in told(done)


# Names and values ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("task", "call", "a.b"),
        ("task", "call", ""),
        ("task", "enqueue", "--force", "a >"),
        ("task", "result", "ünï", "r"),
        ("task", "watch", "*"),
        ("dlq", "ls", "$KV.x"),
        ("dlq", "replay", ">", "r"),
    ],
)
def test_no_subject_is_made_of_a_name_that_does_not_fit(
    served: Cli, words: tuple[str, ...]
) -> None:
    done = served(*words)

    assert done.returncode == 2
    assert "cannot be used on natq" in told(done)


@pytest.mark.parametrize(("verb", "hint"), [("pause", "it can rm"), ("retry", "dlq replay")])
def test_what_a_protocol_cannot_do_is_said(served: Cli, verb: str, hint: str) -> None:
    done = served("queue", verb, "double", *(["r"] if verb == "retry" else []))

    assert done.returncode == 2
    assert f"natq has no way to {verb}" in told(done)
    assert hint in done.stderr


@pytest.mark.parametrize("run_id", ["a b", ">", "", "x" * 2000])
def test_no_key_is_made_of_a_run_id_that_does_not_fit(served: Cli, run_id: str) -> None:
    done = served("task", "enqueue", "double", "number=1", "--run-id", run_id)

    assert done.returncode == 2
    told(done)


def test_a_field_nobody_takes_is_answered_with_the_nearest(served: Cli) -> None:
    done = served("task", "call", "greet", "name=ann", "tmies=2")

    assert done.returncode == 1
    assert "unknown field 'tmies' at $.tmies: did you mean 'times'?" in told(done)


@pytest.mark.parametrize(
    "given",
    [
        ("--concurrency", "0"),
        ("--max-rss", "0"),
        ("--grace", "forever"),
        ("--log-format", "xml"),
    ],
)
def test_a_value_that_will_not_do_is_told_with_what_is_taken(
    cli: Cli, given: tuple[str, str]
) -> None:
    done = cli("worker", "sample_app:app", *given)

    assert done.returncode == 2
    assert given[0] in told(done)
    assert "  try: give " in done.stderr


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[worker\n", "not TOML"),
        ("worker = 3\n", "is a section"),
        ("[worker]\nconcurrency = true\n", "own.toml:2"),
        ("[wroker]\nconcurrency = 1\n", "'worker.concurrency'"),
        ("\udcff", "cannot be read"),
    ],
)
def test_a_settings_file_that_will_not_do_is_told_with_its_place(
    cli: Cli, folder: Path, text: str, fault: str
) -> None:
    (folder / "own.toml").write_bytes(text.encode(errors="surrogateescape"))

    done = cli("config", "show", "--config", "own.toml")

    assert done.returncode == 2
    assert fault in told(done)


# Where the output goes ----------------------------------------------------------------------


def shell(cli: Cli, command: str) -> Ended:
    python = shlex.join([sys.executable, "-m", "penstock"])
    done = subprocess.run(
        ["bash", "-c", command.replace("penstock", python, 1)],
        cwd=cli.folder,
        env=cli.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return Ended(done.args, done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    "words", [("config", "show"), ("config", "show", "--json"), ("--help",), ("version",)]
)
def test_a_reader_that_has_had_enough_is_no_fault(cli: Cli, words: tuple[str, ...]) -> None:
    with subprocess.Popen(
        cli.command(*words),
        cwd=cli.folder,
        env=cli.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        assert started.stdout and started.stderr
        started.stdout.close()
        said = started.stderr.read()

    assert (started.returncode, said) == (0, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams_are_no_fault(cli: Cli, closed: str) -> None:
    done = shell(cli, f"penstock version {closed}")

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_message(cli: Cli) -> None:
    for words in ("config show", "config show --json", "--help"):
        done = shell(cli, f"penstock {words} >/dev/full")

        assert done.returncode == 3
        assert "No space left" in told(done)
    assert shell(cli, "penstock task ls 2>/dev/full").returncode == 3


def on_a_terminal(cli: Cli, *words: str, columns: int = 80, **environ: str) -> str:
    """What the command shows on a terminal of its own."""
    kept = {name: value for name, value in cli.environ.items() if name != "NO_COLOR"}
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        cli.command(*words),
        cwd=cli.folder,
        env={**kept, "TERM": "xterm", "COLUMNS": str(columns), **environ},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    said = b"".join(_read_all(ours))
    os.close(ours)
    assert process.wait(DEADLINE_S) in (0, 3)
    return said.decode()


def _read_all(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            said = os.read(terminal, 65536)
        except OSError:  # its end, on Linux
            return
        if not said:
            return
        yield said


def test_colours_are_for_terminals_and_no_color_ends_them(cli: Cli) -> None:
    coloured = on_a_terminal(cli, "task", "ls")
    plain = on_a_terminal(cli, "task", "ls", NO_COLOR="1")

    assert "\x1b[31m" in coloured
    assert "\x1b[" not in plain
    assert "\x1b[" not in cli("task", "ls", NO_COLOR="").stderr


def test_a_table_on_a_very_narrow_terminal_becomes_lines(cli: Cli) -> None:
    shown = on_a_terminal(cli, "config", "show", "--origin", columns=30)

    assert "setting: worker.grace\r\nvalue: 30s\r\norigin: default\r\n" in shown


def test_ctrl_c_is_130_at_any_moment(served: Cli) -> None:
    for _ in range(3):
        calling = served.start("task", "call", "never", "--timeout", "60s")
        calling.send(signal.SIGINT)
        code = calling.ended()

        assert code in (130, -signal.SIGINT)  # the second: before Python itself is there
        assert "Traceback" not in "".join(calling.said)


def test_what_nobody_expected_is_one_sentence_with_its_place(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @click.command()
    def broken() -> None:
        raise ExceptionGroup("all", [KeyError("lost")])

    assert run(broken, []) == Exit.FAULT
    said = capsys.readouterr().err

    assert "a fault in Penstock: KeyError: 'lost'" in said
    assert "PENSTOCK_DEBUG=1" in said
    assert "Traceback" not in said
