"""Telling: events become deliveries, deliveries become requests, until their receivers agree.

The steward alone reads the event stream and sends; a successor goes on from the same cursor.
Nothing here is on the path of any job: a receiver that is slow or away costs only its own
deliveries. An address is checked again when it is resolved, so that a name cannot turn to a
private address later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from penstock.broker.errors import LinkClosed, LinkError
from penstock.broker.follower import Follower
from penstock.broker.streams import ApiError
from penstock.core.errors import PenstockError
from penstock.core.ids import uuid7
from penstock.protocols.ojs.hooks import Delivery, Hooks, Subscription, is_private, signature
from penstock.protocols.ojs.instants import instant_text
from penstock.protocols.ojs.names import EVENT_SUBJECTS
from penstock.protocols.ojs.room import EVENTS
from penstock.protocols.ojs.shared import Shared
from penstock.protocols.ojs.told import Event

if TYPE_CHECKING:
    from penstock.broker.ownership import Ownership

__all__ = ["Answer", "HookSender"]

_log = logging.getLogger("penstock.ojs")

PAUSES: Final = tuple(
    timedelta(seconds=s) for s in (0, 30, 120, 600, 3600, 4 * 3600, 12 * 3600, 24 * 3600)
)
_TIMEOUT_S: Final = 30.0
_KEEP: Final = timedelta(days=7)
_AT_ONCE: Final = 64
_CURSOR: Final = "cursor.webhooks"
_LONGEST_S: Final = 30.0
_MAX_BODY: Final = 2_000
_MAX_REDIRECTS: Final = 3


class _Cursor(Struct, frozen=True):
    seq: int = 0


class Answer(Struct, frozen=True):
    """What came of one request; a status of 0: none came."""

    status: int
    text: str = ""
    seconds: float = 0.0

    @property
    def accepted(self) -> bool:
        return 200 <= self.status < 300

    @property
    def hopeless(self) -> bool:
        """Whether the receiver will never take it."""
        return 400 <= self.status < 500 and self.status not in (408, 425, 429)


class HookSender:
    def __init__(self, shared: Shared, hooks: Hooks, steward: Ownership) -> None:
        self._shared = shared
        self._hooks = hooks
        self._steward = steward
        self._bucket = shared.room.webhooks
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._busy: set[str] = set()
        self._session: Any = None
        hooks.deliveries.listen(lambda _name, _row: self._changed.set())

    def start(self) -> None:
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._forever(self._read), name="ojs:hooks-read"),
                asyncio.create_task(self._forever(self._send), name="ojs:hooks-send"),
            ]

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def probe(self, subscription: Subscription) -> Answer:
        """Send an event that says only that the way is open."""
        now = self._shared.clock()
        event = Event(
            id=f"evt_{uuid7()}",
            type="webhook.test",
            source=f"ojs://penstock/api/{self._shared.name}",
            time=instant_text(now),
            subject=subscription.id,
            data={"subscription_id": subscription.id},
        )
        delivery = Delivery(
            id=f"del_{uuid7()}",
            subscription=subscription.id,
            event_type=event.type,
            body=Raw(msgspec.json.encode(event)),
            created_ms=self._shared.now_ms,
        )
        return await self._post(subscription, delivery)

    # Reading events ---------------------------------------------------------------------

    async def _forever(self, work: Any) -> None:
        while True:
            await self._steward.acquired.wait()
            try:
                await work()
            except LinkClosed:
                return
            except (PenstockError, TimeoutError) as error:
                _log.warning("webhooks stopped for a moment: %s", error)
                await asyncio.sleep(0.5)

    async def _read(self) -> None:
        """Make deliveries of events, from the cursor on, while we are the steward."""
        room = self._shared.room
        kept = await self._bucket.get(_CURSOR, leader=True)
        if kept is None or kept.deleted:
            seq = (await room.js.stream_info(EVENTS)).state.last_seq
        else:
            seq = msgspec.json.decode(kept.value, type=_Cursor).seq
        follower = Follower(room.link, EVENTS, filters=[EVENT_SUBJECTS], start=seq + 1)
        await follower.open()
        try:
            while self._steward.owned:
                batch = await follower.fetch(500, 1.0)
                for message in batch:
                    if len(self._hooks.subscriptions):
                        event = msgspec.json.decode(message.payload, type=Event)
                        at_ms = message.stored_at_ns // 1_000_000
                        for delivery in self._hooks.due_for(event, at_ms):
                            await self._hooks.deliveries.create(delivery.id, delivery)
                if batch:
                    with contextlib.suppress(LinkError, ApiError):
                        cursor = _Cursor(batch[-1].stream_seq)
                        await self._bucket.put(_CURSOR, msgspec.json.encode(cursor))
        finally:
            await follower.stop()

    # Sending ----------------------------------------------------------------------------

    async def _send(self) -> None:
        running: set[asyncio.Task[None]] = set()
        try:
            while self._steward.owned:
                self._changed.clear()
                pause = _LONGEST_S
                for delivery in self._ready(_AT_ONCE - len(running)):
                    self._busy.add(delivery.id)
                    task = asyncio.create_task(self._deliver(delivery), name="ojs:hook")
                    running.add(task)
                    task.add_done_callback(running.discard)
                if (next_ms := self._next_ms()) is not None:
                    pause = min(pause, max(next_ms - self._shared.now_ms, 10) / 1000)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(pause, 1.0)):
                        await self._changed.wait()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            self._busy.clear()

    def _ready(self, most: int) -> list[Delivery]:
        now_ms = self._shared.now_ms
        due = [
            row
            for _, row in self._hooks.deliveries.rows()
            if row.state == "pending" and row.next_ms <= now_ms and row.id not in self._busy
        ]
        return sorted(due, key=lambda row: row.next_ms)[: max(most, 0)]

    def _next_ms(self) -> int | None:
        waiting = (
            row.next_ms
            for _, row in self._hooks.deliveries.rows()
            if row.state == "pending" and row.id not in self._busy
        )
        return min(waiting, default=None)

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            subscription = self._hooks.subscriptions.get(delivery.subscription)
            if subscription is None or not subscription.active:
                await self._note(delivery, Answer(0, "the subscription is gone"), final=True)
                return
            answer = await self._post(subscription, delivery)
            await self._note(delivery, answer, final=answer.hopeless)
        except PenstockError as error:
            _log.warning("delivery %s could not be noted: %s", delivery.id, error.message)
        finally:
            self._busy.discard(delivery.id)
            self._changed.set()

    async def _note(self, delivery: Delivery, answer: Answer, *, final: bool) -> None:
        """Write down what became of a try; a row that is over goes after a while."""
        now_ms = self._shared.now_ms
        attempts = delivery.attempts + 1
        over = answer.accepted or final or attempts >= len(PAUSES)
        pause_ms = 0 if over else round(PAUSES[attempts] / timedelta(milliseconds=1))

        def decide(row: Delivery | None) -> Delivery | None:
            if row is None:
                return None
            state = "delivered" if answer.accepted else "dead" if over else "pending"
            return replace(
                row,
                state=state,
                attempts=attempts,
                next_ms=0 if over else now_ms + pause_ms,
                last_status=answer.status,
                last_error="" if answer.accepted else answer.text[:500],
                ended_ms=now_ms if over else 0,
            )

        await self._hooks.deliveries.change(delivery.id, decide)
        await self._forget_old(now_ms)

    async def _forget_old(self, now_ms: int) -> None:
        oldest = now_ms - round(_KEEP / timedelta(milliseconds=1))
        old = [r.id for _, r in self._hooks.deliveries.rows() if 0 < r.ended_ms < oldest]
        for name in old[:100]:
            await self._hooks.deliveries.remove(name)

    async def _post(self, subscription: Subscription, delivery: Delivery) -> Answer:
        import aiohttp

        loop = asyncio.get_running_loop()
        begun = loop.time()
        body = bytes(delivery.body)
        headers = self._headers(subscription, delivery, body)
        try:
            session = await self._open_session()
            self._check(subscription.url)
            async with session.post(
                subscription.url,
                data=body,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
                max_redirects=_MAX_REDIRECTS,
            ) as answer:
                text = (await answer.content.read(_MAX_BODY)).decode(errors="replace")
                return Answer(answer.status, text, loop.time() - begun)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return Answer(0, str(error) or type(error).__name__, loop.time() - begun)

    def _headers(
        self, subscription: Subscription, delivery: Delivery, body: bytes
    ) -> dict[str, str]:
        timestamp = str(self._shared.now_ms // 1000)
        signed = [signature(subscription.secret, timestamp, body)]
        if subscription.old_secret and subscription.old_until_ms > self._shared.now_ms:
            signed.append(signature(subscription.old_secret, timestamp, body))
        return {
            "Content-Type": "application/json",
            "User-Agent": "OJS-Webhook/1.0",
            "X-OJS-Event-Type": delivery.event_type,
            "X-OJS-Delivery-ID": delivery.id,
            "X-OJS-Subscription-ID": subscription.id,
            "X-OJS-Timestamp": timestamp,
            "X-OJS-Signature": ",".join(signed),
        }

    def _check(self, url: str) -> None:
        host = urlsplit(url).hostname or ""
        if not self._shared.options.webhooks_private and is_private(host):
            raise OSError(f"{host} is an address of this machine or a private network")

    async def _open_session(self) -> Any:
        if self._session is None:
            import aiohttp

            resolver = None if self._shared.options.webhooks_private else _public_resolver()
            connector = aiohttp.TCPConnector(resolver=resolver, limit=_AT_ONCE)
            self._session = aiohttp.ClientSession(connector=connector)
        return self._session


def _public_resolver() -> Any:
    """Resolves names to addresses of the internet only, whenever they are asked for."""
    from aiohttp.resolver import ThreadedResolver

    class Public(ThreadedResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[Any]:
            found = await super().resolve(host, port, family)
            public = [one for one in found if not is_private(one["host"])]
            if not public:
                raise OSError(f"{host} is an address of this machine or a private network")
            return public

    return Public()
