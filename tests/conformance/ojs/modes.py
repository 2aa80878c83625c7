"""The two meanings of a case: what was written down, and what the public program does.

"Passes the suite" means in public that the upstream program is satisfied, and that program
skips or refuses things which the written language allows. A server is in good shape when it
passes both ways, so every answer is judged twice.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["Mode"]


class Mode(Enum):
    STRICT = "strict"
    COMPAT = "compat"

    @property
    def strict(self) -> bool:
        return self is Mode.STRICT
