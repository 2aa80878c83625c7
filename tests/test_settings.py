"""Settings: what wins over what, where each value came from, and how mistakes are told."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import ConfigError
from penstock.settings import Given, Loaded, load_settings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose parents hold no settings file."""
    return tmp_path


def loaded(folder: Path, toml: str = "", /, **more: Any) -> Loaded:
    if toml:
        (folder / "penstock.toml").write_text(toml)
    return load_settings(cwd=folder, **{"environ": {}, **more})


def refused(folder: Path, toml: str = "", /, **more: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(folder, toml, **more)
    return str(caught.value)


def test_without_anything_all_is_default_and_no_protocol_is_configured(folder: Path) -> None:
    found = loaded(folder)

    assert found.settings.worker.concurrency == 64
    assert found.settings.nats.url == ""
    assert set(found.origins.values()) == {"default"}
    assert found.configured == ()


def test_a_file_wins_over_defaults_the_environment_over_the_file_and_flags_over_all(
    folder: Path,
) -> None:
    toml = "[worker]\nconcurrency = 1\nprocesses = 2\n\nmax_jobs = 3\n"
    environ = {"PENSTOCK_WORKER__PROCESSES": "20", "PENSTOCK_WORKER__MAX_JOBS": "30"}
    flags = [Given("worker.max_jobs", 300, "--max-jobs")]

    found = loaded(folder, toml, environ=environ, flags=flags)

    worker = found.settings.worker
    assert (worker.concurrency, worker.processes, worker.max_jobs) == (1, 20, 300)
    assert found.origins["worker.concurrency"] == "penstock.toml:2"
    assert found.origins["worker.processes"] == "PENSTOCK_WORKER__PROCESSES"
    assert found.origins["worker.max_jobs"] == "--max-jobs"


def test_our_own_url_variable_wins_over_everybodys(folder: Path) -> None:
    both = {"NATS_URL": "nats://theirs", "PENSTOCK_NATS_URL": "nats://ours"}

    assert loaded(folder, environ=both).settings.nats.url == "nats://ours"
    assert loaded(folder, environ={"NATS_URL": "nats://theirs"}).origins["nats.url"] == "NATS_URL"


def test_embedded_and_an_empty_variable_have_their_meanings(folder: Path) -> None:
    toml = "[nats]\nurl = 'nats://one'\n"

    asked = loaded(folder, toml, environ={"PENSTOCK_NATS_URL": "embedded"})
    unset = loaded(folder, toml, environ={"PENSTOCK_NATS_URL": ""})

    assert asked.settings.nats.url == ""
    assert unset.settings.nats.url == "nats://one"


@pytest.mark.parametrize(
    ("said", "meant"),
    [('"30s"', 30), ('"1h 30m"', 5400), ('"250ms"', 0.25), ("2.5", 2.5), ('"7"', 7)],
)
def test_lengths_of_time_are_written_as_people_do(folder: Path, said: str, meant: float) -> None:
    found = loaded(folder, f"[worker]\ngrace = {said}\n")

    assert found.settings.worker.grace == timedelta(seconds=meant)


def test_the_file_is_found_from_a_folder_below_and_its_paths_are_its_own(folder: Path) -> None:
    below = folder / "src" / "shop"
    below.mkdir(parents=True)
    (folder / "penstock.toml").write_text('data = "state"\n[nats]\ncreds = "/etc/x.creds"\n')

    found = load_settings(cwd=below, environ={})

    assert found.settings.data == str(folder / "state")
    assert found.settings.nats.creds == "/etc/x.creds"
    assert found.origins["data"] == str(Path("../../penstock.toml:1"))


def test_pyproject_carries_settings_too_but_only_with_our_table(folder: Path) -> None:
    below = folder / "below"
    below.mkdir()
    (below / "pyproject.toml").write_text("[project]\nname = 'shop'\n")
    (folder / "pyproject.toml").write_text("[tool.penstock.worker]\n\nconcurrency = 5\n")

    found = load_settings(cwd=below, environ={})

    assert found.settings.worker.concurrency == 5
    assert found.origins["worker.concurrency"] == str(Path("../pyproject.toml:3"))


def test_a_section_that_is_present_configures_its_protocol(folder: Path) -> None:
    assert loaded(folder, "[natq]\n").configured == ("natq",)
    assert loaded(folder, "[worker]\n").configured == ()

    by_variable = loaded(folder, environ={"PENSTOCK_NATQ__COMPAT": "true"})

    assert by_variable.configured == ("natq",)
    assert by_variable.settings.natq.compat is True


@pytest.mark.parametrize(
    ("toml", "place", "hint"),
    [
        ("[worker]\n# why\nconcurency = 1\n", "penstock.toml:3", "'worker.concurrency'"),
        ("[wroker]\nconcurrency = 1\n", "penstock.toml:2", "'worker.concurrency'"),
        ("worker = 1\n", "penstock.toml:1", "[worker]"),
        ("[natqq]\n", "penstock.toml:1", "config show"),
    ],
)
def test_an_unknown_setting_is_told_with_its_line_and_the_nearest_name(
    folder: Path, toml: str, place: str, hint: str
) -> None:
    told = refused(folder, toml)

    assert place in told
    assert hint in told


def test_an_unknown_nested_variable_is_an_error_and_a_flat_one_only_told(folder: Path) -> None:
    told = refused(folder, environ={"PENSTOCK_WORKER__CONCURENCY": "1"})
    assert "PENSTOCK_WORKER__CONCURENCY" in told
    assert "worker.concurrency" in told

    found = loaded(folder, environ={"PENSTOCK_NATS_ULR": "x", "PENSTOCK_SERVICE_HOST": "10.0.0.1"})
    assert found.ignored == (
        "PENSTOCK_NATS_ULR (did you mean PENSTOCK_NATS_URL?)",
        "PENSTOCK_SERVICE_HOST",
    )


@pytest.mark.parametrize(
    ("toml", "word"),
    [
        ("[worker]\nconcurrency = 'many'\n", "number"),
        ("[worker]\nconcurrency = 0\n", ">= 1"),
        ("[worker]\ngrace = 'soon'\n", "time like 30s"),
        ("[worker]\ngrace = -1\n", "negative"),
        ("[worker]\nuvloop = 'yes'\n", "true or false"),
        ("[log]\nlevel = 'loud'\n", "`debug` or `info`"),
    ],
)
def test_a_value_of_the_wrong_kind_is_told_with_what_is_taken(
    folder: Path, toml: str, word: str
) -> None:
    told = refused(folder, toml)

    assert "penstock.toml:2" in told
    assert word in told


def test_a_broken_or_missing_file_is_one_sentence(folder: Path) -> None:
    assert "is not TOML" in refused(folder, "[worker\n")
    assert "line 1" in refused(folder, "[worker\n")
    assert "cannot be read" in refused(folder, config="elsewhere.toml")


def test_secrets_show_neither_in_reprs_nor_in_rows_nor_in_errors(folder: Path) -> None:
    toml = (
        "[nats]\nurl = 'nats://ann:hush@one,nats://hush@two'\npassword = 'hush'\n"
        "[redis]\nurl = 'redis://:hush@three'\n[http]\ntoken = 'hush'\n"
    )

    found = loaded(folder, toml)

    assert found.settings.nats.password == "hush"
    assert "hush" not in repr(found)
    assert "hush" not in repr(found.rows())
    assert "ann" in repr(found.rows())
    assert "hush" not in refused(folder, "[http]\ntoken = ['hush']\n")


def test_keys_in_multi_line_texts_and_dotted_keys_keep_the_lines_right(folder: Path) -> None:
    toml = 'nats.name = """\nworker.grace = 1\n[log]\n"""\nworker.grace = 4\n'

    found = loaded(folder, toml)

    assert found.origins["nats.name"] == "penstock.toml:1"
    assert found.origins["worker.grace"] == "penstock.toml:5"
    assert found.settings.worker.grace == timedelta(seconds=4)
