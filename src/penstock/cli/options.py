"""Options that are settings: a flag is only the last and strongest of their sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, TypeVar

import click

from penstock.core.invocation import PROTOCOLS
from penstock.settings import Given, Loaded, Settings, load_settings
from penstock.settings.shape import sections_of

__all__ = ["configured", "protocol_flags", "protocols_of", "setting"]

_FLAGS: Final = "penstock.flags"
_CONFIG: Final = "penstock.config"

Function = TypeVar("Function", bound=Callable[..., Any])


def setting(path: str, flag: str, help: str, *, metavar: str) -> Callable[[Function], Function]:
    """An option that sets ``path``; its value goes to the settings, not to the function."""

    def note(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
        if value is not None:
            ctx.meta.setdefault(_FLAGS, []).append(Given(path, value, flag))

    return click.option(flag, metavar=metavar, help=help, expose_value=False, callback=note)


def protocol_flags(function: Function) -> Function:
    """One flag for each protocol whose room is there."""
    for name in reversed([name for name in PROTOCOLS if name in sections_of(Settings)]):
        function = click.option(f"--{name}", name, is_flag=True, help=f"Serve {name}.")(function)
    return function


def protocols_of(loaded: Loaded, flags: Mapping[str, bool]) -> tuple[str, ...]:
    """What to serve: the protocols with a flag, else those with a section, else natq."""
    chosen = tuple(name for name in PROTOCOLS if flags.get(name))
    return chosen or loaded.configured or ("natq",)


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
