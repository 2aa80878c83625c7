"""Every snippet of README and docs does what its page says, in the order of the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.commands import SHELLS
from tests.docs.desk import Desk
from tests.docs.pages import MAX_NOT_RUN, PAGES, Page

RUN = (*SHELLS, "python", "toml")
SHOWN = ("", "text", "json", "yaml", "dockerfile", "ini", "mermaid", "lua", "http", "sql")
MIN_REASON_CHARS = 12

with_snippets = [page for page in PAGES if any(block.language in RUN for block in page.blocks)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", with_snippets, ids=lambda page: page.name)
def test_the_snippets_of_a_page_run(page: Page, tmp_path: Path) -> None:
    with Desk(tmp_path) as desk:
        for block in page.blocks:
            desk.work(block)


def test_snippets_are_in_languages_that_are_run_or_plainly_only_shown() -> None:
    blocks = [block for page in PAGES for block in page.blocks]

    assert {
        block.place: block.language for block in blocks if block.language not in RUN + SHOWN
    } == {}


def test_few_snippets_are_not_run_and_each_has_its_reason() -> None:
    skipped = [block for page in PAGES for block in page.blocks if block.not_run is not None]

    assert [b.place for b in skipped if len(b.not_run or "") < MIN_REASON_CHARS] == []
    assert len(skipped) <= MAX_NOT_RUN, [block.place for block in skipped]
