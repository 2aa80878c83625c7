"""Settings: one frozen value for a whole process, and for each setting where it came from.

Later wins: defaults, the file (``penstock.toml`` or ``[tool.penstock]``), the environment, flags.
"""

from __future__ import annotations

from penstock.settings.load import Loaded, load_settings
from penstock.settings.model import (
    HttpSettings,
    LogSettings,
    NatsSettings,
    RedisSettings,
    Settings,
    WorkerSettings,
)
from penstock.settings.sources import Given

__all__ = [
    "Given",
    "HttpSettings",
    "Loaded",
    "LogSettings",
    "NatsSettings",
    "RedisSettings",
    "Settings",
    "WorkerSettings",
    "load_settings",
]
