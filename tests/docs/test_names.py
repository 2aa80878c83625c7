"""What the pages name exists: files behind links, `make` targets, `penstock` commands, options."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from penstock.cli.root import root
from tests.docs.commands import SHELLS, commands_of
from tests.docs.pages import PAGES, ROOT, Block, Page, page_of

_ELSEWHERE = re.compile(r"^[a-z]+:")  # https:, mailto:
_PLACEHOLDER = re.compile(r"^[A-Z\[(…<]|^\.\.\.$")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Page) -> None:
    assert [
        f"{page.name}:{line}: {target}" for line, target in page.links() if _dead(page, target)
    ] == []


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        f"{place}: make {name}": name
        for place, text in _commands()
        for name in re.findall(r"(?:^|[;&|]\s*)make ([a-z]+)", text)
    }

    assert named
    assert [place for place, name in named.items() if name not in targets] == []


def test_penstock_commands_and_options_that_are_named_exist() -> None:
    faults = [f"{place}: {fault}" for place, text in _commands() for fault in _wrong(text)]

    assert faults == []


def test_the_readme_starts_with_a_file_of_under_25_lines() -> None:
    readme = next(page for page in PAGES if page.name == "README.md")
    first = next(block for block in readme.blocks if block.language == "python")

    assert first.text.startswith("# app.py\n")
    assert len(first.text.splitlines()) < 25


def test_the_shop_on_every_desk_is_the_one_that_the_tutorial_ends_with() -> None:
    tutorial = page_of(ROOT / "docs" / "tutorial" / "index.md")
    written = [block.text for block in tutorial.blocks if block.text.startswith("# shop.py\n")]

    assert ast.dump(ast.parse(written[-1])) == ast.dump(
        ast.parse((ROOT / "docs" / "shop.py").read_text())
    )


def _dead(page: Page, target: str) -> bool:
    if _ELSEWHERE.match(target):
        return False
    name, _, anchor = target.partition("#")
    path = (page.path.parent / name).resolve() if name else page.path
    if not path.exists() or not path.is_relative_to(ROOT):
        return True
    return bool(anchor) and path.suffix == ".md" and anchor not in page_of(path).anchors()


def _commands() -> Iterator[tuple[str, str]]:
    """Place and text of every command: those in shell blocks and those in backticks."""
    for page in PAGES:
        for block in page.blocks:
            yield from _shell_lines(block)
        yield from ((f"{page.name}:{line}", text) for line, text in page.spans())


def _shell_lines(block: Block) -> Iterator[tuple[str, str]]:
    if block.language in SHELLS:
        yield from ((command.place, command.text) for command in commands_of(block))


def _wrong(text: str) -> Iterator[str]:
    """What is wrong with every ``penstock …`` in a command line."""
    for call in re.findall(r"(?:^|[\s(])penstock((?: [^\s|;&)]+)+)", text):
        try:
            words = shlex.split(call, comments=True)
        except ValueError:  # a quote that closes in the part we have cut off
            words = call.split()
        if fault := _fault_of(words):
            yield fault


def _fault_of(words: list[str]) -> str | None:
    command: click.Command = root
    ctx = click.Context(root, info_name="penstock")
    for word in words:
        if _PLACEHOLDER.match(word):
            return None
        if word.startswith("-"):
            if word not in ("-", "--") and word.partition("=")[0] not in _options(command, ctx):
                return f"{ctx.command_path} has no option {word}"
        elif isinstance(command, click.Group):
            found = command.get_command(ctx, word)
            if found is None:
                return f"{ctx.command_path} has no command {word}"
            command, ctx = found, click.Context(found, parent=ctx, info_name=word)
    return None


def _options(command: click.Command, ctx: click.Context) -> set[str]:
    return {
        name for param in command.get_params(ctx) for name in (*param.opts, *param.secondary_opts)
    }


def test_a_name_that_is_not_there_is_found(tmp_path: Path) -> None:
    assert list(_wrong("penstock tsak ls")) == ["penstock has no command tsak"]
    assert list(_wrong("echo 1 | penstock task ls --jsno")) == [
        "penstock task ls has no option --jsno"
    ]
    assert list(_wrong("penstock worker shop:app --concurrency 8 && penstock task …")) == []
    here = tmp_path / "a.md"
    here.write_text("# A title\n\n[one](a.md#a-title) [two](#nowhere)\n")

    assert sorted(page_of(here).anchors()) == ["a-title"]
