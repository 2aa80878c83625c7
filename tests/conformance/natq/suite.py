"""Runs the checks side by side and keeps the two scores."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from tests.chaos.servers import NatsServer
from tests.conformance.natq import (
    checks_async,
    checks_config,
    checks_fleet,
    checks_results,
    checks_sync,
    checks_upstream,
)
from tests.conformance.natq.registry import Check, Failed, checks
from tests.conformance.natq.stage import Stage

__all__ = ["ROOMS", "Report", "Verdict", "chosen", "run_suite"]

ROOMS = (
    checks_upstream,
    checks_config,
    checks_sync,
    checks_async,
    checks_results,
    checks_fleet,
)  # importing them registers their checks, in this order
_LIMIT_SECONDS = 60.0
_SLOW_LIMIT_SECONDS = 200.0
_SERVERS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one check ended: ``ok``, ``FAIL`` or ``skip``, with the reason of the last two."""

    check: Check
    word: str
    why: str
    seconds: float

    def __str__(self) -> str:
        line = f"{self.word:4}  {self.check.name:34} {self.check.level:6} {self.seconds:5.1f} s"
        return f"{line}  {self.why}" if self.why else line


@dataclass
class Report:
    """All verdicts of a run."""

    verdicts: list[Verdict] = field(default_factory=list)

    def of(self, word: str, *levels: str) -> list[Verdict]:
        levels = levels or ("both", "strict")
        return [v for v in self.verdicts if v.word == word and v.check.level in levels]

    def score(self, *levels: str) -> str:
        """Passed of judged, and what was left out: ``38/40 (2 skipped)``."""
        passed, failed = len(self.of("ok", *levels)), len(self.of("FAIL", *levels))
        skipped = len(self.of("skip", *levels))
        left_out = f" ({skipped} skipped)" if skipped else ""
        return f"{passed}/{passed + failed}{left_out}"


def chosen(
    *, level: str | None = None, only: Collection[str] = (), slow: bool = False
) -> list[Check]:
    """The checks to run. ``only`` takes names or their beginnings (``sync.``), slow ones too."""
    if only:
        return [c for c in checks.values() if any(c.name.startswith(name) for name in only)]
    levels = ("both",) if level == "compat" else ("both", "strict")
    return [c for c in checks.values() if c.level in levels and (slow or not c.slow)]


async def run_suite(
    command: list[str],
    selected: list[Check],
    *,
    nats_url: str | None = None,
    say: Callable[[Verdict], None] = lambda verdict: None,
) -> Report:
    """Judge the worker that ``command`` starts; ``say`` hears each verdict as it falls.

    Without ``nats_url`` servers are started on free ports and removed afterwards. With
    one, checks that need a server of their own are skipped. Raises `Failed` if the
    worker does not announce the seven tasks at all.
    """
    report = Report()

    def note(verdict: Verdict) -> None:
        report.verdicts.append(verdict)
        say(verdict)

    shared = [check for check in selected if not check.own_server]
    alone = [check for check in selected if check.own_server]
    async with AsyncExitStack() as stack:
        server = None if nats_url else await stack.enter_async_context(NatsServer())
        url = nats_url or (server.url if server else "")
        stage = await stack.enter_async_context(Stage(url, command, server))
        await stage.add_worker()
        runs = [_judged(check, stage, note) for check in shared]
        gate = asyncio.Semaphore(_SERVERS_AT_ONCE)
        runs += [_judged_alone(c, command, stage, gate, note, bool(nats_url)) for c in alone]
        await asyncio.gather(*runs)
    return report


async def _judged(check: Check, stage: Stage, note: Callable[[Verdict], None]) -> None:
    """Run one check on the shared stage, if the worker serves what it needs."""
    if missing := [task for task in check.needs if task not in stage.definitions]:
        note(Verdict(check, "skip", f"not announced: {', '.join(missing)}", 0.0))
        return
    await _tried(check, stage, note)


async def _judged_alone(
    check: Check,
    command: list[str],
    known: Stage,
    gate: asyncio.Semaphore,
    note: Callable[[Verdict], None],
    foreign_server: bool,
) -> None:
    missing = [task for task in check.needs if task not in known.definitions]
    if missing or foreign_server:
        why = f"not announced: {', '.join(missing)}" if missing else "needs a server of its own"
        note(Verdict(check, "skip", why, 0.0))
        return
    async with gate, NatsServer() as server, Stage(server.url, command, server) as stage:
        await _tried(check, stage, note)


async def _tried(check: Check, stage: Stage, note: Callable[[Verdict], None]) -> None:
    """Note how it ended; nothing but cancellation gets out."""
    started = time.monotonic()
    word, why = "ok", ""
    try:
        async with asyncio.timeout(_SLOW_LIMIT_SECONDS if check.slow else _LIMIT_SECONDS):
            await check.run(stage)
    except Failed as failure:
        word, why = "FAIL", str(failure)
    except Exception as error:  # a worker under test may break anything
        word, why = "FAIL", f"{type(error).__name__}: {error}"
    note(Verdict(check, word, why, time.monotonic() - started))
