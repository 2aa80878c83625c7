"""natq: request/reply and work-queue tasks on NATS, on the wire that its other SDKs speak.

The names of the upstream Python SDK are here too, so that its users change one import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.protocols.natq.client import Answer, Job, NatqClient, Run
    from penstock.protocols.natq.options import NatqOptions
    from penstock.protocols.natq.upstream import (
        DefaultLogger,
        JsonSerializable,
        Logger,
        LogLevel,
        NatqWorker,
        NatqWorkerOptions,
        RegisteredTask,
        TaskContext,
        TaskHandler,
        TaskRunInput,
        TaskRunOutput,
    )
    from penstock.protocols.natq.wire import StatusCode, TaskDefinition, TaskType

_HOMES = {
    "client": ("Answer", "Job", "NatqClient", "Run"),
    "options": ("NatqOptions",),
    "wire": ("StatusCode", "TaskDefinition", "TaskType"),
    "upstream": (
        "DefaultLogger",
        "JsonSerializable",
        "LogLevel",
        "Logger",
        "NatqWorker",
        "NatqWorkerOptions",
        "RegisteredTask",
        "TaskContext",
        "TaskHandler",
        "TaskRunInput",
        "TaskRunOutput",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Answer",
    "DefaultLogger",
    "Job",
    "JsonSerializable",
    "LogLevel",
    "Logger",
    "NatqClient",
    "NatqOptions",
    "NatqWorker",
    "NatqWorkerOptions",
    "RegisteredTask",
    "Run",
    "StatusCode",
    "TaskContext",
    "TaskDefinition",
    "TaskHandler",
    "TaskRunInput",
    "TaskRunOutput",
    "TaskType",
]


def __getattr__(name: str) -> Any:
    """Import a name's home when it is first asked for: options must not cost a broker."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
