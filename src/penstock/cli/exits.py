"""How a command ends: one exit code and, when something is wrong, one message with a remedy.

=====  ===============================================================
  0    it worked
  1    the work failed: a task answered with an error
  2    the command line, a setting or an input is wrong
  3    the environment cannot be reached or started
  4    what was named does not exist
  5    it took longer than allowed
130    interrupted
=====  ===============================================================

``PENSTOCK_DEBUG=1`` shows the traceback as well.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from enum import IntEnum

import click

from penstock.core.errors import (
    BadInput,
    ConfigError,
    PenstockError,
    Problem,
    TaskFailed,
    UnknownName,
)

__all__ = ["Exit", "NotFound", "code_of", "run"]


class Exit(IntEnum):
    """What the shell is told."""

    OK = 0
    FAILED = 1
    USAGE = 2
    ENVIRONMENT = 3
    NOT_FOUND = 4
    TIMED_OUT = 5
    INTERRUPTED = 130


class NotFound(PenstockError):
    """What the command names does not exist."""

    code = "not_found"


# By class; the first that fits decides.
_BY_CLASS: tuple[tuple[type[BaseException], Exit], ...] = (
    (BadInput, Exit.USAGE),
    (ConfigError, Exit.USAGE),
    (Problem, Exit.ENVIRONMENT),
    (UnknownName, Exit.NOT_FOUND),
    (NotFound, Exit.NOT_FOUND),
    (TimeoutError, Exit.TIMED_OUT),
    (TaskFailed, Exit.FAILED),
    (ConnectionError, Exit.ENVIRONMENT),
    (PermissionError, Exit.ENVIRONMENT),
)
# By the stable code, for errors whose modules may not be loaded; the longest prefix decides.
_BY_CODE = {
    "protocol.unknown": Exit.USAGE,
    "link": Exit.ENVIRONMENT,
    "link.timeout": Exit.TIMED_OUT,
    "nats": Exit.ENVIRONMENT,
    "natq": Exit.ENVIRONMENT,
    "redis": Exit.ENVIRONMENT,
}


def run(command: click.Command, arguments: Sequence[str] | None = None) -> int:
    """The exit code of ``command``; whatever goes wrong has been told on stderr."""
    try:
        answer = command.main(arguments, prog_name="penstock", standalone_mode=False)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except (click.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BrokenPipeError:  # `penstock task ls | head`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except Exception as error:
        if os.environ.get("PENSTOCK_DEBUG"):
            traceback.print_exc()
        code = code_of(error)
        if code is None:
            raise
        _tell(error)
        return code
    return answer if isinstance(answer, int) else Exit.OK


def code_of(error: BaseException) -> Exit | None:
    """The exit code for an error, ``None`` for one that nobody expects."""
    code = error.code if isinstance(error, PenstockError) else ""
    while code:
        if code in _BY_CODE:
            return _BY_CODE[code]
        code = code.rpartition(".")[0]
    for kind, exit_ in _BY_CLASS:
        if isinstance(error, kind):
            return exit_
    return Exit.FAILED if isinstance(error, PenstockError) else None


def _tell(error: BaseException) -> None:
    if isinstance(error, PenstockError):
        click.echo(
            click.style("error: ", fg="red", bold=True, reset=True) + error.message, err=True
        )
        if error.remedy:
            click.echo(f"  try: {error.remedy}", err=True)
    else:
        click.echo(f"error: {str(error) or type(error).__name__}", err=True)
