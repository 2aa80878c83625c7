"""The services of one engine: promoter and reaper, cron, reconciler, projector.

Any number of instances run them at once, and none needs a leader to be right. One of them is the
steward, who acts at once and tells the events; the others look a moment later, find the work
done, and step in where it is not.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from penstock.broker.ownership import Ownership
from penstock.protocols.ojs.books import Books
from penstock.protocols.ojs.clockwork import Clockwork
from penstock.protocols.ojs.crons import Crons
from penstock.protocols.ojs.entry import Entry
from penstock.protocols.ojs.hook_sender import HookSender
from penstock.protocols.ojs.projector import Projector
from penstock.protocols.ojs.reconciler import Reconciler
from penstock.protocols.ojs.wakeups import WakeUps

if TYPE_CHECKING:
    from penstock.protocols.ojs.engine import Engine

__all__ = ["Services"]

_TERM: Final = timedelta(seconds=3)
_LATER_MS: Final = 100


class Services:
    def __init__(
        self,
        steward: Ownership,
        clockwork: Clockwork,
        crons: Crons,
        reconciler: Reconciler,
        *,
        projector: Projector | None,
        wake_ups: WakeUps,
        hook_sender: HookSender | None,
    ) -> None:
        self.steward = steward
        self.clockwork = clockwork
        self.crons = crons
        self.reconciler = reconciler
        self.projector = projector
        self.wake_ups = wake_ups
        self.hook_sender = hook_sender

    @classmethod
    def of(cls, engine: Engine) -> Services:
        shared, workflows = engine.shared, engine.workflows

        def exempt(entry: Entry) -> bool:
            """Members of a workflow are kept until it is over."""
            return bool(entry.workflow) and workflows.is_running(entry.workflow)

        steward = Ownership(shared.room.queues, "owner.steward", shared.name, _TERM)
        wake_ups = WakeUps(shared, steward)
        return cls(
            steward,
            Clockwork(shared, delay_ms=lambda: 0 if steward.owned else _LATER_MS, exempt=exempt),
            engine.crons,
            Reconciler(shared, engine.intake, workflows, engine.workers, wake_ups),
            projector=Projector(shared, steward) if shared.options.events else None,
            wake_ups=wake_ups,
            hook_sender=(
                HookSender(shared, engine.hooks, steward) if shared.options.events else None
            ),
        )

    def listen(self, books: Books) -> None:
        books.listen(self.clockwork.heard)
        books.listen(self.reconciler.heard)
        books.listen(self.wake_ups.heard)

    async def start(self) -> None:
        await self.steward.start()
        self.clockwork.start()
        self.crons.start()
        self.reconciler.start()
        self.wake_ups.start()
        if self.projector is not None:
            self.projector.start()
        if self.hook_sender is not None:
            self.hook_sender.start()

    async def stop(self) -> None:
        """End them all. Safe to repeat."""
        if self.hook_sender is not None:
            await self.hook_sender.stop()
        if self.projector is not None:
            await self.projector.stop()
        await self.wake_ups.stop()
        await self.reconciler.stop()
        await self.crons.stop()
        await self.clockwork.stop()
        await self.steward.stop()
