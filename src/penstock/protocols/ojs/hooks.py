"""Webhooks: who wants to be told of which events, and what is still to be told.

A delivery is a row under an id that is computed from subscription and event, so that however
often an event is looked at, it is told once; the row goes on until its receiver has said yes,
has said never, or has had all its chances.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from penstock.core.ids import uuid7
from penstock.protocols.ojs.eventlog import EventFilter
from penstock.protocols.ojs.fields import Fields
from penstock.protocols.ojs.instants import instant_text, of_ms
from penstock.protocols.ojs.names import fixed_id
from penstock.protocols.ojs.refusal import Refusal, invalid, not_found
from penstock.protocols.ojs.shared import Shared
from penstock.protocols.ojs.table import Table
from penstock.protocols.ojs.told import Event

__all__ = ["Delivery", "Hooks", "Subscription", "is_private", "parse_subscription", "signature"]

_OLD_SECRET_MS: Final = 24 * 3600 * 1000
_MAX_EVENTS: Final = 100
_MAX_URL: Final = 2048

State = Literal["pending", "delivered", "dead"]


class Subscription(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where events of some kinds go. ``old_secret`` still signs until ``old_until_ms``."""

    id: str
    url: str
    events: tuple[str, ...]
    secret: str
    created_ms: int
    active: bool = True
    queues: tuple[str, ...] = ()
    job_types: tuple[str, ...] = ()
    metadata: Raw = Raw(b"{}")
    old_secret: str = ""
    old_until_ms: int = 0

    @property
    def wanted(self) -> EventFilter:
        return EventFilter(types=self.events, queues=self.queues, job_types=self.job_types)

    def view(self, *, with_secret: bool = False) -> dict[str, Any]:
        """As everybody sees it; the secret is shown once, to whoever made it."""
        shown: dict[str, Any] = {
            "id": self.id,
            "url": self.url,
            "events": list(self.events),
            "active": self.active,
            "filter": {"queues": list(self.queues), "job_types": list(self.job_types)},
            "metadata": self.metadata,
            "created_at": instant_text(of_ms(self.created_ms)),
        }
        return {**shown, "secret": self.secret} if with_secret else shown


class Delivery(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event for one subscription, and how far it has come."""

    id: str
    subscription: str
    event_type: str
    body: Raw
    created_ms: int
    state: State = "pending"
    attempts: int = 0
    next_ms: int = 0
    last_status: int = 0
    last_error: str = ""
    ended_ms: int = 0

    def view(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "subscription_id": self.subscription,
            "event_type": self.event_type,
            "state": self.state,
            "attempts": self.attempts,
            "next_attempt_at": instant_text(of_ms(self.next_ms)) if self.next_ms else None,
            "last_status_code": self.last_status or None,
            "last_error": self.last_error or None,
            "created_at": instant_text(of_ms(self.created_ms)),
        }


class Hooks:
    """Subscriptions and deliveries, kept in one bucket."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.subscriptions: Table[Subscription] = Table(shared.room.webhooks, "sub", Subscription)
        self.deliveries: Table[Delivery] = Table(shared.room.webhooks, "del", Delivery)

    async def start(self) -> None:
        await asyncio.gather(self.subscriptions.start(), self.deliveries.start())

    async def stop(self) -> None:
        await self.subscriptions.stop()
        await self.deliveries.stop()

    # Subscriptions ----------------------------------------------------------------------

    async def subscribe(self, asked: Subscription) -> Subscription:
        await self.subscriptions.create(asked.id, asked)
        return asked

    async def all(self) -> list[Subscription]:
        await self.subscriptions.barrier()
        return [row for _, row in self.subscriptions.rows()]

    async def get(self, name: str) -> Subscription | Refusal:
        row = await self.subscriptions.read(name) if _is_id(name, "sub_") else None
        return not_found("subscription", name) if row is None else row.value

    async def amend(self, name: str, **changed: Any) -> Subscription | Refusal:
        """Change what is given, keep the rest."""
        found = await self.get(name)
        if isinstance(found, Refusal):
            return found

        def decide(row: Subscription | None) -> Subscription | Refusal:
            return not_found("subscription", name) if row is None else replace(row, **changed)

        done = await self.subscriptions.change(name, decide)
        return done if done is not None else not_found("subscription", name)

    async def rotate(self, name: str) -> Subscription | Refusal:
        """A new secret; the old one signs too, for a day."""
        found = await self.get(name)
        if isinstance(found, Refusal):
            return found
        until = self._shared.now_ms + _OLD_SECRET_MS
        return await self.amend(
            name, secret=new_secret(), old_secret=found.secret, old_until_ms=until
        )

    async def remove(self, name: str) -> Refusal | None:
        gone = _is_id(name, "sub_") and await self.subscriptions.remove(name)
        return None if gone else not_found("subscription", name)

    # Deliveries -------------------------------------------------------------------------

    def due_for(self, event: Event, at_ms: int) -> list[Delivery]:
        """A delivery for each subscription that wants the event."""
        found = []
        for _, row in self.subscriptions.rows():
            if row.active and row.wanted.admits(event):
                number = fixed_id(at_ms, "delivery", row.id, event.id)
                found.append(
                    Delivery(
                        id=f"del_{number}",
                        subscription=row.id,
                        event_type=event.type,
                        body=Raw(msgspec.json.encode(event)),
                        created_ms=at_ms,
                        next_ms=at_ms,
                    )
                )
        return found

    async def delivery(self, name: str) -> Delivery | Refusal:
        row = await self.deliveries.read(name) if _is_id(name, "del_") else None
        return not_found("delivery", name) if row is None else row.value

    async def again(self, name: str) -> Delivery | Refusal:
        """Give a delivery that was given up another chance, at once."""
        found = await self.delivery(name)
        if isinstance(found, Refusal):
            return found
        now_ms = self._shared.now_ms

        def decide(row: Delivery | None) -> Delivery | Refusal:
            if row is None:
                return not_found("delivery", name)
            return replace(row, state="pending", attempts=0, next_ms=now_ms, ended_ms=0)

        done = await self.deliveries.change(name, decide)
        return done if done is not None else not_found("delivery", name)


# Reading ------------------------------------------------------------------------------


def parse_subscription(raw: Mapping[str, Raw], now_ms: int, *, private: bool) -> Subscription:
    """A subscription as sent. Raises `Refused` naming the member."""
    fields = Fields(dict(raw))
    given = fields_given(fields, private=private)
    for name in ("url", "events"):
        if name not in given:
            raise fields.bad(name, "is required")
    secret = fields.text("secret", max_chars=256)
    return Subscription(
        id=f"sub_{uuid7()}", secret=secret or new_secret(), created_ms=now_ms, **given
    )


def fields_given(fields: Fields, *, private: bool) -> dict[str, Any]:
    """The members that a client may set and change."""
    given: dict[str, Any] = {}
    if (url := fields.text("url", max_chars=_MAX_URL)) is not None:
        given["url"] = _checked(url, private=private)
    if (events := fields.texts("events", max_items=_MAX_EVENTS)) is not None:
        if not events:
            raise fields.bad("events", "must name at least one event, or '*'")
        given["events"] = events
    if (active := fields.flag("active")) is not None:
        given["active"] = active
    if (inner := fields.fields("filter")) is not None:
        given["queues"] = inner.texts("queues") or ()
        given["job_types"] = inner.texts("job_types") or ()
    if (metadata := fields.object("metadata")) is not None:
        given["metadata"] = metadata
    return given


def new_secret() -> str:
    return f"whsec_{secrets.token_urlsafe(32)}"


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """What receivers compare: over the time and the body, so that neither can be changed."""
    signed = timestamp.encode() + b"." + body
    return "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def is_private(host: str) -> bool:
    """Whether an address is of this machine or its networks rather than of the internet."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host.lower().rstrip(".") == "localhost" or host.lower().endswith(".localhost")
    return not address.is_global or address.is_multicast


def _checked(url: str, *, private: bool) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise invalid("url", "cannot be read") from None
    if parts.scheme not in ("http", "https") or not host:
        raise invalid("url", "must be an http or https address")
    if parts.username or parts.password:
        raise invalid("url", "must not hold credentials")
    if not private and is_private(host):
        raise invalid("url", "must not be an address of this machine or a private network")
    return url


def _is_id(name: str, prefix: str) -> bool:
    return (
        name.startswith(prefix)
        and name[len(prefix) :].replace("-", "").isalnum()
        and (name.isascii() and len(name) < 64)
    )
