"""Write cli.md, settings.md and ojs-http.md of docs/reference from what they are about.

``python scripts/gen_cli_docs.py`` writes them; ``--check`` only tells whether they are current.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from penstock.cli import exits
from penstock.cli.output import words_of
from penstock.cli.root import root
from penstock.protocols.ojs.http.routing import Route
from penstock.protocols.ojs.http.serving import TABLES
from penstock.protocols.ojs.refusal import CODES
from penstock.settings import Settings
from penstock.settings.shape import Field, fields_of, sections_of, traits_of, type_words
from penstock.settings.sources import SHORT_FORMS

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
MADE = "<!-- Made by scripts/gen_cli_docs.py; change the commands or settings instead. -->"
EXITS = {
    exits.Exit.OK: "it worked",
    exits.Exit.FAILED: "the work failed: a task answered with an error",
    exits.Exit.USAGE: "the command line, a setting, an input or `MODULE:APP` is wrong",
    exits.Exit.ENVIRONMENT: "the environment cannot be reached or started",
    exits.Exit.NOT_FOUND: "what was named does not exist",
    exits.Exit.TIMED_OUT: "it took longer than allowed",
    exits.Exit.FAULT: "a fault in Penstock itself: please report it",
    exits.Exit.INTERRUPTED: "interrupted with Ctrl-C",
}

CLI_HEAD = """\
# The `penstock` command

{made}

Data goes to stdout, talk to stderr. Lists are tables for people; `--json` gives one line of
JSON (`task watch`: one per change). `NO_COLOR` is honoured.

Any command that needs NATS finds it by `--nats`, then `PENSTOCK_NATS_URL`, `NATS_URL` and the
settings file; Redis by `--redis`, then `PENSTOCK_REDIS_URL` and the settings file. Without any
of them it uses the `penstock dev` that runs in this folder or one above it.

## Inputs of a task

`key=value` takes the value as JSON where it parses and as text elsewhere; `key:='"7"'` insists
on JSON. `--json '{{…}}'`, `--json @file` and `-` (stdin) give the whole input; pairs add to it.
"""

SETTINGS_HEAD = """\
# Settings

{made}

Later wins: defaults, the file, the environment, flags. `penstock config show --origin` tells
where each value comes from.

- **File:** `--config`, else `PENSTOCK_CONFIG`, else the nearest `penstock.toml` (or
  `[tool.penstock]` in `pyproject.toml`) from the current folder upwards. Paths in it are
  relative to it.
- **Environment:** `PENSTOCK_` and the name, sections with two underscores:
  `PENSTOCK_WORKER__CONCURRENCY=8`. An empty variable counts as not set.
- **Short forms:** {short_forms}.
- **Times** are written `250ms`, `30s`, `1h 30m`; a plain number is seconds.
- A worker serves the protocols whose flag is given or whose section is present, else natq.
"""


HTTP_HEAD = """\
# Open Job Spec over HTTP

<!-- Made by scripts/gen_cli_docs.py; change the handlers instead. -->

Every path of `penstock serve`, as the OpenAPI document at `/ojs/openapi.json` tells it too. What
the server is and promises stands in [Open Job Spec](ojs.md). The role is the least that a bearer
token needs where tokens are set: *view*, *operate* or *admin*; `–` is open to everybody.
"""


def main() -> None:
    pages = {
        FOLDER / "cli.md": cli_page(),
        FOLDER / "settings.md": settings_page(),
        FOLDER / "ojs-http.md": http_page(),
    }
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        sys.exit(f"not current: {', '.join(path.name for path in stale)}" if stale else 0)
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(pages[path])
        print(f"wrote {path.name}")


def cli_page() -> str:
    return "\n".join([*_cli_head(), *_commands(root, "penstock", 2)]).rstrip() + "\n"


def _cli_head() -> Iterator[str]:
    yield from (CLI_HEAD.format(made=MADE), "## Exit codes", "", "| code | meaning |", "|---|---|")
    yield from (f"| {int(code)} | {words} |" for code, words in EXITS.items())
    yield from (
        "",
        "An error is one message and a remedy; `PENSTOCK_DEBUG=1` shows the traceback.",
        "",
    )


def _commands(command: click.Command, path: str, level: int) -> Iterator[str]:
    ctx = click.Context(command, info_name=path)
    if isinstance(command, click.Group):
        if path != "penstock":
            yield from (f"{'#' * level} `{path}`", "", _prose(command), "")
        for name in command.list_commands(ctx):
            found = command.get_command(ctx, name)
            assert found is not None
            yield from _commands(
                found, f"{path} {name}", level if path == "penstock" else level + 1
            )
        return
    yield from (f"{'#' * level} `{path}`", "", _prose(command), "")
    usage = " ".join(command.collect_usage_pieces(ctx))
    yield from ("```text", f"{path} {usage}", "```", "")
    options = [param for param in command.get_params(ctx) if isinstance(param, click.Option)]
    rows = [option.get_help_record(ctx) for option in options]
    yield from ("| option | |", "|---|---|")
    yield from (f"| `{row[0].replace('|', chr(92) + '|')}` | {row[1]} |" for row in rows if row)
    yield ""


def _prose(command: click.Command) -> str:
    text = inspect.cleandoc(command.help or "")
    before, mark, listing = text.partition("\b\n")
    return f"{before.rstrip()}\n\n```text\n{listing}\n```" if mark else text


def http_page() -> str:
    return "\n".join(_http_lines()).rstrip() + "\n"


def _http_lines() -> Iterator[str]:
    yield HTTP_HEAD
    for table in TABLES:
        yield from (f"## {table.tag.capitalize()}", "")
        yield from ("| method | path | role | |", "|---|---|---|---|")
        yield from map(_route, table)
        yield ""
    yield from ("## Error codes", "", "| code | status | retryable | remedy |", "|---|---|---|---|")
    for code, meaning in CODES.items():
        again = "yes" if meaning.retryable else "no"
        yield f"| `{code}` | {meaning.status} | {again} | {meaning.hint} |"


def _route(route: Route) -> str:
    role = "–" if route.role is None else route.role.name.lower()
    query = f" (`{'`, `'.join(route.query)}`)" if route.query else ""
    return f"| {route.method} | `{route.path}` | {role} | {route.summary}{query} |"


def settings_page() -> str:
    return "\n".join(_settings_lines()).rstrip() + "\n"


def _settings_lines() -> Iterator[str]:
    short_forms = ", ".join(f"`{variable}` for {path}" for variable, path in SHORT_FORMS.items())
    yield SETTINGS_HEAD.format(made=MADE, short_forms=short_forms)
    known = fields_of(Settings)
    yield from ("## Top level", "", inspect.cleandoc(Settings.__doc__ or ""), "")
    yield from _table(field for path, field in known.items() if "." not in path)
    for name, section in sections_of(Settings).items():
        yield from (
            "",
            f"## `[{name}]`",
            "",
            inspect.cleandoc(section.__doc__ or "").replace("``", "`"),
        )
        yield ""
        yield from _table(f for path, f in known.items() if path.startswith(f"{name}."))


def _table(fields: Any) -> Iterator[str]:
    yield from ("| name | takes | default | |", "|---|---|---|---|")
    for field in fields:
        name = field.path.rpartition(".")[2]
        yield f"| `{name}` | {type_words(field.kind)} | {_default(field)} | {_about(field)} |"


def _default(field: Field) -> str:
    words = words_of(field.default)
    return f"`{words}`" if words else ""


def _about(field: Field) -> str:
    return f"{field.about} *Secret.*" if "secret" in traits_of(field.kind) else field.about


if __name__ == "__main__":
    main()
