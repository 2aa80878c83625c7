"""Options that are settings: a flag is only the last and strongest of their sources."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final, TypeVar

import click

from penstock.settings import Given, Loaded, load_settings

__all__ = ["configured", "setting"]

_FLAGS: Final = "penstock.flags"
_CONFIG: Final = "penstock.config"

Function = TypeVar("Function", bound=Callable[..., Any])


def setting(path: str, flag: str, help: str, *, metavar: str) -> Callable[[Function], Function]:
    """An option that sets ``path``; its value goes to the settings, not to the function."""

    def note(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
        if value is not None:
            ctx.meta.setdefault(_FLAGS, []).append(Given(path, value, flag))

    return click.option(flag, metavar=metavar, help=help, expose_value=False, callback=note)


def configured(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--nats``, ``--redis``, ``--data``, ``--config``, and the settings first."""

    @wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        return function(_loaded(click.get_current_context()), *args, **kwargs)

    for option in (
        click.option(
            "--config",
            metavar="FILE",
            help="Settings file [penstock.toml].",
            expose_value=False,
            callback=_note_config,
        ),
        setting("data", "--data", "Folder of embedded servers.", metavar="DIR"),
        setting("redis.url", "--redis", "Address of Redis.", metavar="URL"),
        setting("nats.url", "--nats", "Address of NATS.", metavar="URL"),
    ):
        command = option(command)
    return command


def _note_config(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    ctx.meta[_CONFIG] = value


def _loaded(ctx: click.Context) -> Loaded:
    return load_settings(flags=ctx.meta.get(_FLAGS, ()), config=ctx.meta.get(_CONFIG))
