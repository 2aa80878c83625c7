"""The services of one engine: promoter and reaper, cron, reconciler, projector.

Any number of instances run them at once. None needs a leader to be right; see each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocols.ojs.books import Books
from penstock.protocols.ojs.clockwork import Clockwork
from penstock.protocols.ojs.crons import Crons
from penstock.protocols.ojs.entry import Entry
from penstock.protocols.ojs.projector import Projector
from penstock.protocols.ojs.reconciler import Reconciler

if TYPE_CHECKING:
    from penstock.protocols.ojs.engine import Engine

__all__ = ["Services"]


class Services:
    def __init__(
        self,
        clockwork: Clockwork,
        crons: Crons,
        reconciler: Reconciler,
        projector: Projector | None,
    ) -> None:
        self.clockwork = clockwork
        self.crons = crons
        self.reconciler = reconciler
        self.projector = projector

    @classmethod
    def of(cls, engine: Engine) -> Services:
        shared, workflows = engine.shared, engine.workflows

        def exempt(entry: Entry) -> bool:
            """Members of a workflow are kept until it is over."""
            return bool(entry.workflow) and workflows.is_running(entry.workflow)

        return cls(
            Clockwork(shared, exempt=exempt),
            engine.crons,
            Reconciler(shared, engine.intake, workflows, engine.workers),
            Projector(shared) if shared.options.events else None,
        )

    def listen(self, books: Books) -> None:
        books.listen(self.clockwork.heard)
        books.listen(self.reconciler.heard)

    async def start(self) -> None:
        self.clockwork.start()
        self.crons.start()
        self.reconciler.start()
        if self.projector is not None:
            await self.projector.start()

    async def stop(self) -> None:
        """End them all. Safe to repeat."""
        if self.projector is not None:
            await self.projector.stop()
        await self.reconciler.stop()
        await self.crons.stop()
        await self.clockwork.stop()
