"""The desk: all that the handlers of one HTTP face work with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.broker.errors import LinkError
from penstock.protocols.ojs.http.endings import Endings
from penstock.protocols.ojs.http.meters import Meters
from penstock.protocols.ojs.refusal import Refusal, Refused
from penstock.web.auth import Tokens

if TYPE_CHECKING:
    from penstock.protocols.ojs.engine import Engine
    from penstock.protocols.ojs.envelope import Submission
    from penstock.protocols.ojs.options import Limits, OjsOptions
    from penstock.protocols.ojs.schemas import Checking, SchemaRegistry

__all__ = ["Desk"]


@dataclass(slots=True)
class Desk:
    """``stopping``: this instance answers what it has, and is not ready for more."""

    engine: Engine
    schemas: SchemaRegistry
    tokens: Tokens = field(default_factory=Tokens)
    checking: Checking = "warn"
    stopping: bool = False
    openapi: Mapping[str, Any] = field(default_factory=dict)
    endings: Endings = field(init=False)
    meters: Meters = field(init=False)
    _errands: set[asyncio.Task[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.endings = Endings(self.engine)
        self.meters = Meters(self.engine)

    def errand(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something that no answer waits for."""
        task = asyncio.create_task(work, name="ojs:errand")
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    @property
    def options(self) -> OjsOptions:
        return self.engine.options

    @property
    def limits(self) -> Limits:
        return self.engine.options.limits

    def now(self) -> datetime:
        return self.engine.shared.clock()

    @property
    def uptime_s(self) -> float:
        return (self.now() - self.engine.started_at).total_seconds()

    async def ping_ms(self) -> float | None:
        """How long the store takes to answer; ``None`` when it does not."""
        begun = time.perf_counter()
        try:
            await self.engine.shared.room.link.flush(timeout=2.0)
        except (LinkError, TimeoutError):
            return None
        return (time.perf_counter() - begun) * 1000

    def checked(self, submission: Submission) -> list[dict[str, Any]]:
        """What is odd about the arguments, where schemas only warn. Raises `Refused` where they
        are enforced, or where the job itself asks to be validated."""
        if b'"ojs_validate"' in bytes(submission.meta):
            _validated(submission)
        if self.checking == "off":
            return []
        version = submission.version
        named = "" if version is None else str(msgspec.json.decode(version))
        problems = self.schemas.problems(submission.type, named, submission.args)
        if problems and self.checking == "strict":
            message = f"args: {problems[0]['message']} at {problems[0]['path']}"
            raise Refused(Refusal("schema_validation", message, {"validation_errors": problems}))
        return [dict(problem, code="schema_validation") for problem in problems]


def _validated(submission: Submission) -> None:
    """The specification's validating middleware: a job that asks for it must have arguments."""
    meta = msgspec.json.decode(submission.meta)
    if meta.get("ojs_validate") is True and not msgspec.json.decode(submission.args):
        message = "args: must not be empty when meta.ojs_validate is set"
        raise Refused(Refusal("validation_error", message, {"field": "args"}))
