"""Kill points: free unless armed, exact when armed."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from penstock.core import points
from penstock.core.errors import ConfigError
from penstock.core.points import Strike

PASSER = """
from penstock.core.points import armed, reach
print("armed", armed, flush=True)
for n in (1, 2, 3, 4):
    reach("between.writes")
    reach("elsewhere")
    print("passed", n, flush=True)
"""


def passing(kill_at: str | None) -> subprocess.CompletedProcess[str]:
    env = {points.VARIABLE: kill_at} if kill_at else {}
    command = [sys.executable, "-c", PASSER]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)


def test_without_the_variable_nothing_is_armed_and_every_point_is_passed() -> None:
    ended = passing(None)

    assert ended.returncode == 0
    assert ended.stdout.split()[:2] == ["armed", "False"]
    assert "passed 4" in ended.stdout


def test_the_process_dies_at_the_named_point_at_the_wanted_passage() -> None:
    ended = passing("between.writes:3")

    assert ended.returncode == -signal.SIGKILL
    assert "passed 2" in ended.stdout and "passed 3" not in ended.stdout


def test_other_points_do_not_count_as_passages() -> None:
    assert passing("somewhere.else:1").returncode == 0


@pytest.mark.parametrize("text", ["", ":1", "a:0", "a:-1", "a:x", "a:1:TERM"])
def test_a_kill_point_that_cannot_be_read_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(ConfigError, match="PENSTOCK_KILL_AT"):
        Strike.parse(text)


def test_a_program_with_an_unreadable_kill_point_does_not_start_quietly() -> None:
    ended = passing("between.writes:soon")

    assert ended.returncode != 0
    assert "is not a kill point" in ended.stderr


def test_a_strike_is_written_as_it_is_read() -> None:
    strike = Strike("natq.after_final_put", 3, "STOP")

    assert Strike.parse(str(strike)) == strike
