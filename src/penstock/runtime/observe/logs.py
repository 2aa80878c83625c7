"""Logs: lines for machines (JSON) or for people, with the ids of what they are about.

Every line that concerns a run carries ``workerId``, ``taskId`` and ``runId``; handlers get
them through ``ctx.log``, the runtime adds them itself.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import msgspec

__all__ = ["HumanLines", "JsonLines", "set_up_logs"]

_IDS = ("workerId", "taskId", "runId")
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """One JSON object a line: ``at``, ``level``, ``logger``, ``message``, then all extras."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=repr).decode()


class HumanLines(logging.Formatter):
    """Time, level, what happened, then which task and run; the worker only where no run is."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3]
        about = _about(record)
        head = f"{at} {record.levelname.lower():7} {record.getMessage()}"
        line = f"{head}  ({about})" if about else head
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def set_up_logs(
    style: Literal["json", "human"] = "human",
    level: int | str = logging.INFO,
    stream: TextIO | None = None,
) -> logging.Handler:
    """Send everything that Penstock logs to ``stream`` (stderr); once, whoever calls again."""
    root = logging.getLogger("penstock")
    for old in [h for h in root.handlers if isinstance(h.formatter, (JsonLines, HumanLines))]:
        root.removeHandler(old)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if style == "json" else HumanLines())
    root.addHandler(handler)
    root.setLevel(level)
    root.propagate = False
    return handler


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _PLAIN}


def _about(record: logging.LogRecord) -> str:
    worker, task, run = (getattr(record, name, "") for name in _IDS)
    if task or run:
        return f"{task} {run}".strip()
    return f"worker {worker}" if worker else ""
