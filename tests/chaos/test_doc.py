"""The page on crash safety names tests and kill points that exist, and misses none of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.chaos.points import KillPoint, Window
from tests.chaos.test_natq_dead import REPLAYS
from tests.chaos.test_natq_windows import WINDOWS
from tests.chaos.test_ojs_windows import DEEPER as OJS_DEEPER
from tests.chaos.test_ojs_windows import WINDOWS as OJS_SHORT
from tests.chaos.test_omniq_groups import WINDOWS as OMNIQ_GROUP_WINDOWS
from tests.chaos.test_omniq_windows import WINDOWS as OMNIQ_WINDOWS

ROOT = Path(__file__).parents[2]
OJS_ELSEWHERE = (
    "wrote.lapsed",
    "unique_staged",
    "unique_locked",
    "batch_staged",
    "batch_committed",
    "workflow_created",
    "workflow_started",
    "cron_fired",
)
OJS_WINDOWS = [*OJS_SHORT, *OJS_DEEPER, *(KillPoint(f"ojs.{name}") for name in OJS_ELSEWHERE)]
PAGE = (ROOT / "docs" / "explanation" / "crash-safety.md").read_text("utf-8")


@pytest.fixture(scope="module")
def defined() -> set[str]:
    sources = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py")]
    return {
        name for text in sources for name in re.findall(r"^\s*(?:async )?def (\w+)", text, re.M)
    }


def test_every_test_on_the_page_exists(defined: set[str]) -> None:
    named = set(re.findall(r"\btest_\w+", PAGE)) - {"test_doc"}
    files = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}

    assert named - defined - files == set()


def test_every_law_on_the_page_exists(defined: set[str]) -> None:
    laws = re.findall(r"^\| `(\w+)` \| ", PAGE, re.M)

    assert len(laws) > 5
    assert [law for law in laws if law not in defined] == []


@pytest.mark.parametrize(("room", "windows"), [
    ("natq", [*WINDOWS, *REPLAYS]),
    ("omniq", [*OMNIQ_WINDOWS, *OMNIQ_GROUP_WINDOWS]),
    ("ojs", OJS_WINDOWS),
])  # fmt: skip
def test_every_window_is_on_the_page(room: str, windows: list[Window]) -> None:
    named = set(re.findall(rf"`({room}\.(?!on_lost)[\w.]+)`", PAGE))

    points = {window.name for window in windows if isinstance(window, KillPoint)}
    assert named == {point for point in points if point.startswith(room)}


def test_every_kill_test_of_natq_is_on_the_page() -> None:
    here = [path.read_text("utf-8") for path in Path(__file__).parent.glob("test_natq_*.py")]
    tests = {name for text in here for name in re.findall(r"def (test_\w+)", text)}
    listing = {"test_every_named_point_of_the_room_has_a_window"}

    assert [name for name in tests - listing if name not in PAGE] == []
