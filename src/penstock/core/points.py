"""Named points in the program where a test may strike it dead, and where nothing happens otherwise.

A crash window is closed by name: production code says `reach("natq.after_final_put")`
between two writes, and the kill harness starts the program with
``PENSTOCK_KILL_AT=natq.after_final_put:3`` to end it there with SIGKILL the third time,
or with ``…:3:STOP`` to freeze it. Without the variable `reach` is an empty function,
chosen once at import; a hot loop may skip even that with ``if points.armed:``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Final

from penstock.core.errors import ConfigError

__all__ = ["VARIABLE", "Strike", "armed", "reach"]

VARIABLE: Final = "PENSTOCK_KILL_AT"
_SIGNALS: Final = {"KILL": signal.SIGKILL, "STOP": signal.SIGSTOP}


@dataclass(frozen=True, slots=True)
class Strike:
    """Where, at which passage (1 is the first) and how a process ends itself."""

    point: str
    passage: int = 1
    how: str = "KILL"

    @classmethod
    def parse(cls, text: str) -> Strike:
        """Read ``point[:passage[:KILL|STOP]]``. Raises `ConfigError` for anything else.

        >>> Strike.parse("natq.after_final_put:3")
        Strike(point='natq.after_final_put', passage=3, how='KILL')
        """
        point, _, rest = text.partition(":")
        passage, _, how = rest.partition(":")
        number = passage or "1"
        if not point or not number.isdigit() or int(number) < 1 or (how or "KILL") not in _SIGNALS:
            raise ConfigError(
                f"{VARIABLE}={text!r} is not a kill point",
                remedy=f"write name:passage or name:passage:STOP, or unset {VARIABLE}.",
            )
        return cls(point, int(number), how or "KILL")

    def __str__(self) -> str:
        return f"{self.point}:{self.passage}:{self.how}"


def _never(name: str, /) -> None:
    """Pass by: the process is not to be struck."""


def _striking(strike: Strike) -> Callable[[str], None]:
    passages = count(1)  # next() is one step for the interpreter, so threads share it safely

    def reach(name: str, /) -> None:
        if name == strike.point and next(passages) == strike.passage:
            os.kill(os.getpid(), _SIGNALS[strike.how])

    return reach


_wanted = os.environ.get(VARIABLE)
armed: Final[bool] = bool(_wanted)
reach: Final[Callable[[str], None]] = _striking(Strike.parse(_wanted)) if _wanted else _never
