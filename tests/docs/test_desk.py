"""The desk itself: what it runs, and that it fails where a reader would be misled."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.docs.commands import mismatch
from tests.docs.desk import Desk, SnippetFailed
from tests.docs.pages import Page, page_of


def a_page(folder: Path, text: str) -> Page:
    path = folder / "page.md"
    path.write_text(text)
    return page_of(path)


def work(folder: Path, text: str) -> None:
    page = a_page(folder, text)
    (folder / "desk").mkdir()
    with Desk(folder / "desk") as desk:
        for block in page.blocks:
            desk.work(block)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("```python\nassert 1 == 2\n```\n", "page.md:1: exit code 1"),
        ("x\n\n```python\n# a.py\nprint(\n```\n", "page.md:3: exit code 1"),
        ("```sh\ntrue\nfalse\n```\n", "page.md:3: exit code 1"),
        ("```sh\npenstock task ls  # exit code 4\n```\n", "exit code 3, not 4"),
        ("```console\n$ echo one\ntwo\n```\n", "the page shows:\ntwo\nand it says:\none"),
        ("```toml\n[nats]\nulr = 'x'\n```\n", "nats.url"),
        ("```sh\npenstock worker nowhere:app\n```\n", "ended at once"),
    ],
)
def test_a_snippet_that_misleads_is_told_with_its_line(
    tmp_path: Path, text: str, told: str
) -> None:
    with pytest.raises(SnippetFailed) as caught:
        work(tmp_path, text)

    assert told in str(caught.value)


def test_files_variables_and_output_are_those_of_one_reader(tmp_path: Path) -> None:
    work(
        tmp_path,
        "```python\n# pack/one.py\nN = 41\n```\n\n"
        "```python\nfrom pack.one import N\n\nassert N == 41\n```\n\n"
        "```sh\nnumber=$(python -c 'from pack.one import N; print(N + 1)')\nmake nothing\n```\n\n"
        "```python\nimport os\n\nassert os.environ['number'] == '42'\n```\n\n"
        '```console\n$ echo "$number apples" \\\n>   and pears\n42 … pears\n'
        "$ false # exit code 1\n```\n",
    )


def test_a_worker_goes_on_beside_the_commands_below_it_and_ends_with_the_page(
    tmp_path: Path,
) -> None:
    app = "from penstock import App\n\napp = App('held')\n\n@app.task(reply=True)\n"
    work(
        tmp_path,
        f"```python\n# held.py\nimport os\n{app}def who() -> int:\n    return os.getpid()\n```\n\n"
        "```sh\npenstock worker held:app --nats nats://localhost:4222\n"
        "penstock task call who --nats nats://localhost:4222 > pid\n```\n",
    )

    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "desk" / "pid").read_text()), 0)


def test_a_marked_block_is_not_run_and_the_mark_is_for_that_block_only(tmp_path: Path) -> None:
    page = a_page(
        tmp_path,
        "<!-- not run: it would erase the disk -->\n\n```sh\nfalse\n```\n\n```sh\ntrue\n```\n\n"
        "<!-- not run: far away -->\n\nSome words.\n\n```sh\ntrue\n```\n",
    )

    assert [block.not_run for block in page.blocks] == ["it would erase the disk", None, None]


def test_shown_output_is_compared_with_dots_for_what_differs() -> None:
    assert mismatch("a … c\n…\nz", "a b c\nd\ne\nz\n") is None
    assert mismatch("a", "a  \n\n") is None
    assert mismatch("a", "a\nb") is not None
    assert mismatch("1.5", "125") is not None


def test_a_block_that_is_never_closed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"page.md:3: this block is never closed"):
        a_page(tmp_path, "one\n\n```sh\ntrue\n")
