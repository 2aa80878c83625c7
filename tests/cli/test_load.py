"""MODULE:APP: what is found, and how each way of not finding it is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.load import LoadError, load_app


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test imports is not there for the next one."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


def module(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return folder


ONE = "from penstock import App\n\napplication = App('one')\nalias = application\nnumber = 1\n"


def test_an_attribute_or_a_bare_module_with_one_app_is_found(tmp_path: Path) -> None:
    folder = module(tmp_path, "load_one", ONE)

    assert load_app("load_one:application", cwd=folder).name == "one"
    assert load_app("load_one", cwd=folder).name == "one"


def test_a_module_within_a_package_and_a_dotted_attribute_are_found(tmp_path: Path) -> None:
    folder = module(tmp_path, "load_pkg/inner", f"{ONE}class Box:\n    app = application\n")
    (folder / "load_pkg" / "__init__.py").touch()

    assert load_app("load_pkg.inner:Box.app", cwd=folder).name == "one"


@pytest.mark.parametrize(
    ("spec", "told", "hint"),
    [
        ("laod_one:application", "no module 'laod_one'", "'load_one'"),
        ("nowhere_at_all:app", "no module 'nowhere_at_all'", "folder that holds"),
        ("load_one.py:application", "not the name of a module", "'load_one:application'"),
        ("./load_one", "not the name of a module", "'load_one'"),
        (":app", "not the name of a module", "shop:app"),
        ("load_one:aplication", "has no 'aplication'", "'application'"),
        ("load_one:xyzzy", "has no 'xyzzy'", "load_one:application"),
        ("load_one:number", "is of type int, not a penstock.App", "load_one:application"),
    ],
)
def test_what_is_not_there_is_told_with_the_nearest(
    tmp_path: Path, spec: str, told: str, hint: str
) -> None:
    folder = module(tmp_path, "load_one", ONE)

    with pytest.raises(LoadError) as caught:
        load_app(spec, cwd=folder)

    assert told in caught.value.message
    assert hint in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "told"),
    [("x = 1\n", "holds no applications"), (f"{ONE}other = App('two')\n", "holds 2")],
)
def test_a_bare_module_must_hold_exactly_one_app(tmp_path: Path, text: str, told: str) -> None:
    folder = module(tmp_path, "load_some", text)

    with pytest.raises(LoadError, match=told):
        load_app("load_some", cwd=folder)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def broken(:\n", "SyntaxError"),
        ("import no_such_thing\n", "No module named 'no_such_thing'"),
        ("def f():\n    return 1 / 0\n\nf()\n", "line 2, in f\n    return 1 / 0"),
        ("import sys\nsys.exit(3)\n", "ended the process"),
    ],
)
def test_an_error_inside_the_module_is_shown_from_the_users_own_lines(
    tmp_path: Path, text: str, told: str
) -> None:
    folder = module(tmp_path, "load_bad", text)

    with pytest.raises(LoadError) as caught:
        load_app("load_bad:app", cwd=folder)

    assert told in caught.value.message
    assert "importlib" not in caught.value.message
    assert "penstock/cli" not in caught.value.message


def test_a_worker_of_what_is_not_there_is_exit_2_in_one_message(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "worker", "no_such_module:app"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert done.stderr.startswith("error: no module 'no_such_module'")
