"""Checks and how they are written: a named coroutine that expects things of a stage.

@check("sync.bad_json", needs=("e2e-add",))
async def bad_json(stage: Stage) -> None:
    "Input that is not JSON is answered with 406."
    reply = await stage.request("e2e-add", b"{")
    expect(reply.status == "406", f"status {reply.status!r}")
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.conformance.natq.stage import Stage

__all__ = ["E2E", "Check", "Failed", "check", "checks", "expect"]

E2E = {
    "e2e-add": "sync",
    "e2e-echo": "sync",
    "e2e-client-error": "sync",
    "e2e-delay": "async",
    "e2e-retry": "async",
    "e2e-async-client-error": "async",
    "e2e-drop-result": "async",
}
CheckFunction = Callable[["Stage"], Awaitable[None]]


class Failed(AssertionError):
    """The worker under test did not do what it should; the message says what it did."""


@dataclass(frozen=True, slots=True)
class Check:
    """``level`` is ``both`` (upstream SDKs pass too) or ``strict`` (Penstock's promise).

    With ``own_server`` the check gets a server of its own, with no worker on it yet,
    because it kills, restarts or counts workers. ``slow`` ones run only when asked for.
    """

    name: str
    run: CheckFunction
    level: str
    needs: tuple[str, ...]
    own_server: bool
    slow: bool

    @property
    def promise(self) -> str:
        return (self.run.__doc__ or "").strip().splitlines()[0]


checks: dict[str, Check] = {}


def check(
    name: str,
    *,
    level: str = "both",
    needs: tuple[str, ...] = (),
    own_server: bool = False,
    slow: bool = False,
) -> Callable[[CheckFunction], CheckFunction]:
    """Register a check under a unique name; ``needs`` are the tasks it calls."""

    def register(run: CheckFunction) -> CheckFunction:
        assert name not in checks, f"two checks are named {name}"
        assert run.__doc__, f"{name} promises nothing"
        checks[name] = Check(name, run, level, needs, own_server, slow)
        return run

    return register


def expect(holds: Any, why: str) -> None:
    """Raise `Failed` with ``why`` unless ``holds``."""
    if not holds:
        raise Failed(why)
