"""Waiting for jobs to be over, without asking again and again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.protocols.ojs.names import TERMINAL
from penstock.protocols.ojs.record import Record
from penstock.protocols.ojs.refusal import Refusal

if TYPE_CHECKING:
    from penstock.protocols.ojs.engine import Engine
    from penstock.protocols.ojs.entry import Entry

__all__ = ["Endings"]


class Endings:
    """Who waits for which job. Listens once, for all of them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: dict[str, set[asyncio.Event]] = {}
        engine.shared.books.listen(self._heard)

    async def of(self, job_id: str, wait_s: float, *, tenant: str = "") -> Record | Refusal:
        """The job once it is over, or as it is when the time is up."""
        over = asyncio.Event()
        self._waiting.setdefault(job_id, set()).add(over)
        try:
            found = await self._engine.info(job_id, tenant=tenant)
            if isinstance(found, Refusal) or found.is_terminal or wait_s <= 0:
                return found
            try:
                async with asyncio.timeout(wait_s):
                    await over.wait()
            except TimeoutError:
                return found
            return await self._engine.info(job_id, tenant=tenant)
        finally:
            waiting = self._waiting[job_id]
            waiting.discard(over)
            if not waiting:
                del self._waiting[job_id]

    def _heard(self, job_id: str, entry: Entry | None, record: Record | None) -> None:  # noqa: ARG002
        if self._waiting and (entry is None or entry.state in TERMINAL):
            for over in self._waiting.get(job_id, ()):
                over.set()
