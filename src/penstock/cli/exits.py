"""How a command ends: one exit code and, when something is wrong, one message with a remedy.

=====  ===============================================================
  0    it worked
  1    the work failed: a task answered with an error
  2    the command line, a setting or an input is wrong
  3    the environment cannot be reached or started
  4    what was named does not exist
  5    it took longer than allowed
  70    a fault in Penstock itself
130    interrupted
=====  ===============================================================

``PENSTOCK_DEBUG=1`` shows the traceback as well.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from pathlib import Path

import click

from penstock.cli.output import styled
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
    FAULT = 70
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
    (OSError, Exit.ENVIRONMENT),
)
# By the stable code, for errors whose modules may not be loaded; the longest prefix decides.
_BY_CODE = {
    "protocol.unknown": Exit.USAGE,
    "link": Exit.ENVIRONMENT,
    "link.timeout": Exit.TIMED_OUT,
    "nats": Exit.ENVIRONMENT,
    "natq": Exit.ENVIRONMENT,
    "natq.run_id": Exit.USAGE,
    "natq.task_id": Exit.USAGE,
    "redis": Exit.ENVIRONMENT,
}


def run(command: click.Command, arguments: Sequence[str] | None = None) -> int:
    """The exit code of ``command``; whatever goes wrong has been told on stderr."""
    try:
        answer = command.main(arguments, prog_name="penstock", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except (click.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BrokenPipeError:
        return _had_enough()
    except SystemExit:  # click and rich end the process for this reason only
        return _had_enough()
    except Exception as error:  # noqa: BLE001 - the last place where it can be told
        return _told(error)
    return answer if isinstance(answer, int) else Exit.OK


def _had_enough() -> int:
    """``penstock task ls | head``: the reader has what it wanted, and nothing more is written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
    return Exit.OK


def _told(error: Exception) -> int:
    """Tell what went wrong in one message, and with which code to end."""
    if os.environ.get("PENSTOCK_DEBUG"):
        traceback.print_exception(error)
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    code = code_of(error)
    _tell(error, _fault(error) if code is None else "")
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        _had_enough()  # or the interpreter complains again when it ends
    return Exit.FAULT if code is None else code


def _fault(error: Exception) -> str:
    """What nobody expected, with the place of it: enough to report."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"a fault in Penstock: {type(error).__name__}: {error}{place}"


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


def _tell(error: Exception, fault: str) -> None:
    message, remedy = fault, "report it with what PENSTOCK_DEBUG=1 shows." if fault else ""
    if not fault and isinstance(error, PenstockError):
        message, remedy = error.message, error.remedy
        if isinstance(error, BadInput) and error.path != "$":
            message += f" at {error.path}"
    elif not fault:
        message = _words_of(error)
    with suppress(OSError):  # a stderr that cannot be written to has no reader either
        click.echo(styled("error: ", fg="red", bold=True) + message, err=True)
        if remedy:
            click.echo(f"  try: {remedy}", err=True)


def _words_of(error: Exception) -> str:
    """An error of the system as people say it."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__
