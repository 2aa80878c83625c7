"""Names that never repeat: UUIDv7 and ULID for people and sorting, short tokens for fences."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime

import uuid_utils

__all__ = ["short_token", "ulid", "uuid7", "uuid7_instant"]


def uuid7() -> str:
    """A UUID of version 7: sorts by the time it was made, monotone within a process."""
    return str(uuid_utils.uuid7())


def ulid() -> str:
    """A 26-character ULID in Crockford's base 32."""
    from ulid import ULID  # slow to load (package metadata), and few processes need it

    return str(ULID())


def short_token() -> str:
    """Sixteen random characters for a fence: unguessable, never reused."""
    return secrets.token_hex(8)


def uuid7_instant(text: str) -> datetime | None:
    """When a UUIDv7 was made, or ``None`` if ``text`` is not one."""
    try:
        value = uuid_utils.UUID(text)
    except ValueError:
        return None
    if value.version != 7:
        return None
    try:
        return datetime.fromtimestamp((value.int >> 80) / 1000, UTC)
    except (ValueError, OverflowError):  # 48 bits of milliseconds reach past the year 9999
        return None
