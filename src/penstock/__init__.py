"""Penstock: durable background work for Python on NATS JetStream.

Write a handler once, as a typed function; serve it over five open wire protocols.
Importing this loads no broker: names arrive from their homes when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.app import App, Client, connect
    from penstock.core.context import Context, LeaseLost
    from penstock.core.errors import BadInput, PenstockError, TaskFailed, Waited
    from penstock.core.outcome import Continue, Done, Reject, Retry, Snooze
    from penstock.core.policy import Backoff, BackoffKind, RetryPolicy
    from penstock.protocols.natq.client import Job

__version__ = "0.1.0"

_HOMES = {
    "app": ("App", "Client", "connect"),
    "core.context": ("Context", "LeaseLost"),
    "core.errors": ("BadInput", "PenstockError", "TaskFailed", "Waited"),
    "core.outcome": ("Continue", "Done", "Reject", "Retry", "Snooze"),
    "core.policy": ("Backoff", "BackoffKind", "RetryPolicy"),
    "protocols.natq.client": ("Job",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "App",
    "Backoff",
    "BackoffKind",
    "BadInput",
    "Client",
    "Context",
    "Continue",
    "Done",
    "Job",
    "LeaseLost",
    "PenstockError",
    "Reject",
    "Retry",
    "RetryPolicy",
    "Snooze",
    "TaskFailed",
    "Waited",
    "__version__",
    "connect",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
