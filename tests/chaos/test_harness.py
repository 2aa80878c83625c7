"""The harness itself: it must kill where it says, restart, judge, and leave nothing behind."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from random import Random

import psutil
import pytest

from tests.chaos.harness import Killer, Program, Unmet, eventually
from tests.chaos.invariants import (
    Journal,
    Ledger,
    count_is,
    every_run_was_asked_for,
    final_never_lives_again,
    finished_at_most_once,
    judge,
    nothing_lost,
    runs_at_most,
)
from tests.chaos.points import KillPoint, RandomKills, Window
from tests.chaos.scenario import Broken, Scenario, run_scenario

COUNTER = """
import signal, sys, time
from pathlib import Path
from penstock.core.points import reach
from tests.chaos.invariants import Journal, Ledger

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
folder, careful = Path(sys.argv[1]), sys.argv[2] == "careful"
journal = Journal(folder / "journal")

def finished():
    ledger = Ledger()
    ledger.read_journal(folder / "journal")
    return ledger.ids("final")

for todo in sorted(folder.glob("*.todo")):
    if careful and todo.stem in finished():
        todo.unlink()
        continue
    journal.note("started", todo.stem)
    reach("counter.before_final")
    journal.note("final", todo.stem)  # one write: it is done and it is known
    reach("counter.after_final")
    todo.unlink()
    time.sleep(0.02)
print("idle", flush=True)
signal.pause()
"""


def python(code: str, *args: str, env: Mapping[str, str] | None = None) -> Program:
    return Program([sys.executable, "-u", "-c", code, *args], env=env)


async def test_a_line_is_found_whether_it_has_been_printed_or_is_still_to_come() -> None:
    async with python(
        "print('early'); input_ = __import__('time').sleep(0.2); print('late 7')"
    ) as p:
        assert (await p.line("early")).group() == "early"
        assert (await p.line(r"late (\d)")).group(1) == "7"
        assert (await p.line("early")).group() == "early"
        assert await p.wait() == 0


async def test_a_line_that_never_comes_is_reported_with_the_last_output() -> None:
    async with python("print('the reason'); raise SystemExit(3)") as p:
        with pytest.raises(Unmet, match=r"exit code 3[^z]*the reason"):
            await p.line("ready", within=5)


async def test_lines_end_with_the_output() -> None:
    async with python("[print(n) for n in range(1000)]") as p:
        assert [line async for line in p.lines()] == [str(n) for n in range(1000)]


async def test_leaving_the_block_ends_the_child_and_its_children() -> None:
    family = (
        "import subprocess, sys, time\n"
        "c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print('child', c.pid); time.sleep(60)"
    )
    async with python(family) as p:
        child = int((await p.line(r"child (\d+)")).group(1))
        parent = p.pid

    assert not psutil.pid_exists(parent)
    await eventually(lambda: not lives(child), what="the grandchild's end")


async def test_the_children_die_with_a_killed_test_run() -> None:
    outer = (
        "import asyncio, sys\n"
        "from tests.chaos.harness import Program\n"
        "async def main():\n"
        "    p = await Program([sys.executable, '-c', 'import time; time.sleep(60)']).start()\n"
        "    print('child', p.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    async with python(outer) as p:
        child = int((await p.line(r"child (\d+)")).group(1))
        p.kill()
        await p.wait()

        await eventually(lambda: not lives(child), what="the orphan's end")


async def test_a_frozen_child_does_nothing_until_thawed() -> None:
    async with python("import time\nwhile True: print(time.time()); time.sleep(0.01)") as p:
        await p.line(r"\d")
        p.freeze()
        await eventually(lambda: psutil.Process(p.pid).status() == "stopped")
        p.thaw()
        await eventually(lambda: psutil.Process(p.pid).status() != "stopped")
        p.terminate()
        assert await p.wait() == -signal.SIGTERM


def counting(folder: Path, manner: str, jobs: int = 8) -> Scenario:
    """A queue made of files; the careful worker looks for a result before it runs a job again."""

    async def load(ledger: Ledger, dice: Random) -> None:
        for n in range(jobs):
            (folder / f"job-{n}.todo").touch()
            ledger.note("enqueued", f"job-{n}")

    async def done(ledger: Ledger) -> bool:
        return not list(folder.glob("*.todo"))  # noqa: ASYNC240 - a few small files

    async def collect(ledger: Ledger) -> None:
        ledger.read_journal(folder / "journal")

    def program(env: Mapping[str, str]) -> Program:
        return python(COUNTER, str(folder), manner, env=env)

    laws = (nothing_lost, finished_at_most_once, every_run_was_asked_for, runs_at_most(3))
    return Scenario("counting", program, load, done, collect, laws, within=30)


WINDOWS: list[Window] = [
    KillPoint("counter.before_final", 3),
    KillPoint("counter.after_final", 3),
    KillPoint("counter.after_final", 2, freeze=True),
    RandomKills(2, 0.05, 0.3),
]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
async def test_a_careful_program_keeps_its_laws_in_every_window(
    window: Window, tmp_path: Path
) -> None:
    ledger = await run_scenario(counting(tmp_path, "careful"), window, seed=7)

    assert ledger.ids("final") == ledger.ids("enqueued")


async def test_a_careless_program_is_found_out_in_the_window_that_matters(tmp_path: Path) -> None:
    with pytest.raises(Broken, match="finished at most once: job-2: 2 final records"):
        await run_scenario(counting(tmp_path, "careless"), KillPoint("counter.after_final", 3), 7)


async def test_a_point_that_is_never_reached_proves_nothing_and_says_so(tmp_path: Path) -> None:
    killer = Killer(lambda env: python("print('no such point here')", env=env))

    async def never() -> bool:
        return False

    with pytest.raises(Unmet, match=r"no\.such\.point:1 was never reached"):
        await killer.run(KillPoint("no.such.point"), never, dice=Random(1), within=10)


async def test_a_program_that_falls_by_itself_is_restarted_until_the_work_is_done(
    tmp_path: Path,
) -> None:
    fragile = "import sys, pathlib; f = pathlib.Path(sys.argv[1]); f.open('a').write('x')"
    lives_lived = tmp_path / "lives"

    async def three_lives() -> bool:
        return lives_lived.exists() and len(lives_lived.read_text()) >= 3

    killer = Killer(lambda env: python(fragile, str(lives_lived), env=env))
    await killer.run(RandomKills(0), three_lives, dice=Random(1), within=20)

    assert killer.starts == 3


async def test_a_last_life_that_ends_badly_is_reported(tmp_path: Path) -> None:
    bad = (
        "import pathlib, signal, sys; signal.signal(15, lambda *_: sys.exit(7)); "
        "pathlib.Path(sys.argv[1]).touch(); signal.pause()"
    )
    killer = Killer(lambda env: python(bad, str(tmp_path / "up"), env=env))

    async def up() -> bool:
        return (tmp_path / "up").exists()

    with pytest.raises(Unmet, match="exit code 7"):
        await killer.run(RandomKills(0), up, dice=Random(1), within=20)


def test_the_same_seed_gives_the_same_lives() -> None:
    assert RandomKills(5).lives(Random(3)) == RandomKills(5).lives(Random(3))


def ledger_of(*story: str) -> Ledger:
    ledger = Ledger()
    for fact in story:
        kind, id = fact.split()
        ledger.note(kind, id)
    return ledger


def test_a_lost_id_is_named() -> None:
    violations = judge(ledger_of("enqueued a", "enqueued b", "final a"), [nothing_lost])

    assert [violation.id for violation in violations] == ["b"]


def test_a_record_that_goes_back_to_live_is_named_with_its_story() -> None:
    violations = judge(ledger_of("live a", "final a", "live a"), [final_never_lives_again])

    assert [str(v) for v in violations] == ["final never lives again: a: test: live final live"]


def test_a_record_that_lives_and_ends_breaks_no_law() -> None:
    laws = [nothing_lost, final_never_lives_again, finished_at_most_once, count_is(final=1)]

    assert judge(ledger_of("enqueued a", "live a", "live a", "final a"), laws) == []


def test_two_ends_strangers_and_wrong_counts_are_named() -> None:
    ledger = ledger_of("started a", "started a", "final a", "final a")
    laws = [finished_at_most_once, every_run_was_asked_for, runs_at_most(1), count_is(final=2)]

    assert [v.law for v in judge(ledger, laws)] == [
        "finished at most once",
        "every run was asked for",
        "runs at most 1",
        "count",
    ]


def test_a_journal_line_cut_short_is_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.note("started", "a")
    journal.close()
    with (tmp_path / "journal").open("a") as file:
        file.write('{"kind": "star')

    ledger = Ledger()
    ledger.read_journal(tmp_path / "journal")

    assert [(fact.kind, fact.id) for fact in ledger] == [("started", "a")]


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
