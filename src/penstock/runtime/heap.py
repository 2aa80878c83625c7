"""The heap of a process that only works: what it has loaded stays, and is searched no more.

Python looks for garbage in cycles by walking everything alive: some 20 ms, in the midst of jobs,
for the modules of an ordinary application. Those live as long as the process, so once they are
loaded the search is told to leave them out. For a program that Penstock has to itself; a
library must not do this to its host.
"""

from __future__ import annotations

import gc

__all__ = ["settle"]


def settle() -> None:
    """Leave all that is alive now out of later searches for garbage."""
    gc.collect()
    gc.freeze()
