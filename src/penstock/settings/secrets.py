"""Hiding secrets: what may be shown of a setting to whoever reads a terminal or a log."""

from __future__ import annotations

import re
from typing import Any, Final

from penstock.settings.shape import traits_of

__all__ = ["MASK", "masked_url", "shown"]

MASK: Final = "********"
_LOGIN = re.compile(r"(?P<scheme>\w+://|(?:^|(?<=,))\s*)(?P<login>[^/@,]+)@")


def shown(value: Any, kind: Any) -> Any:
    """``value`` as it may be shown: a secret as a mask, an address without its password."""
    if value and "secret" in traits_of(kind):
        return MASK
    if isinstance(value, str) and "@" in value:
        return masked_url(value)
    return value


def masked_url(url: str) -> str:
    """``url`` with passwords and tokens masked, also in a list with commas.

    >>> masked_url("nats://ann:secret@one:4222,nats://token@two")
    'nats://ann:********@one:4222,nats://********@two'
    """
    return _LOGIN.sub(_without_secret, url)


def _without_secret(found: re.Match[str]) -> str:
    user, colon, _ = found["login"].partition(":")
    return f"{found['scheme']}{user if colon else ''}{colon}{MASK}@"
