"""A call as a value: which script, on which queue, with what; and how to read the answer.

Calls are built and read the same for asyncio and for threads; only how bytes travel differs.
What takes several calls is a generator of them (`Steps`), driven by either client.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from penstock.broker.redis_scripts import Script, load_script
from penstock.broker.resp import Arg
from penstock.protocols.omniq.errors import BadArgs
from penstock.protocols.omniq.wire import Compat, is_shared_name, queue_base, text

__all__ = ["Call", "Lookout", "Scripts", "Steps", "anchor", "whole"]

T = TypeVar("T")

_MAX_WHOLE: Final = 2**53  # Lua numbers are exact up to here
_LOOK_AGAIN_SECONDS: Final = 60.0
_MAX_WATCHED: Final = 4096

log = logging.getLogger("penstock.omniq")


class Call(NamedTuple, Generic[T]):
    """One script call; ``read`` makes its result from the reply and raises typed refusals."""

    script: Script
    key: bytes
    args: tuple[Arg, ...]
    read: Callable[[Any], T]


Steps: TypeAlias = Generator[Call[Any], Any, T]


class Scripts:
    """The scripts of one compatibility, each put together at its first use."""

    def __init__(self, compat: Compat = "v1") -> None:
        if compat not in ("v1", "v4"):
            raise BadArgs(f"compat {compat!r} is not known", remedy="use 'v1' or 'v4'.")
        self.compat = compat
        self._swap = {"mirror": "mirror_v4"} if compat == "v4" else {}
        self._loaded: dict[str, Script] = {}

    def __getitem__(self, name: str) -> Script:
        script = self._loaded.get(name)
        if script is None:
            script = _load(name, tuple(self._swap.items()))
            self._loaded[name] = script
        return script


class Lookout:
    """Watches for clients of SDK 4.x on queues that we serve without their mirrors."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._looked: dict[bytes, float] = {}

    def question(self, key: bytes) -> Call[None] | None:
        """The call that looks, once in a while for each queue; ``None`` when there is no need."""
        if self._scripts.compat == "v4":
            return None
        last = self._looked.get(key)
        now = time.monotonic()
        if last is not None and now - last < _LOOK_AGAIN_SECONDS:
            return None
        if last is None and len(self._looked) >= _MAX_WATCHED:
            self._looked.clear()
        self._looked[key] = now
        if key.startswith(b"{cc:"):
            return None
        return Call(self._scripts["presence"], key, (), lambda found: self._warn(key, found))

    def _warn(self, key: bytes, found: Any) -> None:
        if not int(found):
            return
        self._looked[key] = float("inf")  # said once is enough
        queue = text(key).removesuffix(":meta")
        log.warning(
            "OmniQ queue %s is also used by clients of SDK 2.0 or later, which keep statistics and"
            " indexes that this client does not maintain; their monitors will be wrong. Open the"
            ' client with compat="v4", then run `penstock queue rebuild %s --omniq` once.',
            queue,
            queue.strip("{}"),
        )


@lru_cache(maxsize=8192)
def anchor(queue: str) -> bytes:
    """The key that a queue's scripts are called with; it is never created."""
    if not is_shared_name(queue):
        log.warning(
            "OmniQ queue name %r cannot be used by SDK 4.x:"
            " it takes letters, digits, '.', '_' and '-', up to 128",
            queue,
        )
    return f"{queue_base(queue)}:meta".encode()


def whole(name: str, value: int) -> int:
    """``value`` as a number that Lua keeps exactly. Raises `BadArgs`."""
    if type(value) is not int or abs(value) > _MAX_WHOLE:
        raise BadArgs(f"{name} must be a whole number of at most 2**53, not {value!r}")
    return value


@lru_cache(maxsize=128)
def _load(name: str, swap: tuple[tuple[str, str], ...]) -> Script:
    return load_script("penstock.protocols.omniq", name, dict(swap))
