"""``penstock completion``: the script a shell needs to complete our commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from penstock.cli.root import COMMANDS, root

__all__ = ["completion"]


@click.command(short_help=COMMANDS["completion"])
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands in a shell.

    \b
    bash:  penstock completion bash > ~/.local/share/bash-completion/completions/penstock
    zsh:   penstock completion zsh > "${fpath[1]}/_penstock"
    fish:  penstock completion fish > ~/.config/fish/completions/penstock.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(root, {}, "penstock", "_PENSTOCK_COMPLETE").source())
