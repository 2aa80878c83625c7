"""Cases against a server: steps become requests, answers become verdicts.

One run serves both meanings of a case: the same answers are judged twice. Only a case whose
requests themselves differ (`raw_body`, which the public program does not send) runs once for
each meaning.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.conformance.ojs.case import Case, Step, grouped
from tests.conformance.ojs.judge import Answer, judged, judged_together
from tests.conformance.ojs.modes import Mode
from tests.conformance.ojs.templates import expanded

__all__ = ["BOTH", "Run", "Runner", "Verdict"]

BOTH = (Mode.STRICT, Mode.COMPAT)
JSON_TYPE = "application/openjobspec+json"
TIMEOUT = 30.0
RESET = "/ojs/v1/admin/reset"

Between = Callable[[Case, Step], Awaitable[None]]


async def _nothing(case: Case, step: Step) -> None:
    """Between two steps nothing happens, unless a test wants it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One case in one meaning. No misses is a pass."""

    case: Case
    mode: Mode
    misses: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.misses


@dataclass(slots=True)
class Run:
    """What one run of a case has seen so far."""

    modes: Sequence[Mode]
    bodies: dict[str, Any] = field(default_factory=dict)
    misses: dict[Mode, list[str]] = field(default_factory=dict)

    def miss(self, mode: Mode, step: Step, sentence: str) -> None:
        self.misses.setdefault(mode, []).append(f"{step.id}: {sentence}")


class Runner:
    """Runs cases against one server, or against several in turn, request by request.

    ``between`` is awaited before every step but the first: a test kills servers there.
    """

    def __init__(
        self, urls: Sequence[str], http: httpx.AsyncClient, *, between: Between = _nothing
    ) -> None:
        self._urls = itertools.cycle(url.rstrip("/") for url in urls)
        self._http = http
        self._between = between

    async def run(self, case: Case, modes: Sequence[Mode] = BOTH) -> list[Verdict]:
        apart = any(step.raw_body is not None for step in case.steps)
        ways = [(mode,) for mode in modes] if apart else [tuple(modes)]
        verdicts = []
        for way in ways:
            run = await self._once(case, way)
            verdicts += [Verdict(case, mode, tuple(run.misses.get(mode, ()))) for mode in way]
        return verdicts

    async def reset(self) -> None:
        answer = await self._http.post(next(self._urls) + RESET, timeout=TIMEOUT)
        if answer.is_error:
            raise RuntimeError(f"the server cannot be reset: {answer.status_code} {answer.text}")

    async def _once(self, case: Case, modes: Sequence[Mode]) -> Run:
        await self.reset()
        run = Run(modes)
        await self._steps(case, case.setup, run)
        if not run.misses:
            await self._steps(case, case.steps, run)
        await self._steps(case, case.teardown, Run(modes, dict(run.bodies)))
        return run

    async def _steps(self, case: Case, steps: Sequence[Step], run: Run) -> None:
        for number, group in enumerate(grouped(steps)):
            if number:
                await self._between(case, group[0])
            known = dict(run.bodies)
            answers = await asyncio.gather(*(self._step(step, run, known) for step in group))
            for step, body in zip(group, answers, strict=True):
                run.bodies[step.id] = body

    async def _step(self, step: Step, run: Run, known: dict[str, Any]) -> Any:
        """Do one step; what it answered, for the steps that follow."""
        await asyncio.sleep(step.delay_ms / 1000)
        if step.action == "WAIT":
            await asyncio.sleep((step.duration_ms or step.delay_ms) / 1000)
            return None
        if step.action == "ASSERT":
            await self._assert(step, run, known)
            return None
        try:
            answer = await self._request(step, run, known)
        except httpx.HTTPError as error:
            for mode in run.modes:
                run.miss(mode, step, f"no answer: {error!r}")
            return None
        for mode in run.modes:
            for miss in judged(step.assertions, answer, known, mode):
                run.miss(mode, step, miss)
        return answer.body

    async def _assert(self, step: Step, run: Run, known: dict[str, Any]) -> None:
        if Mode.STRICT in run.modes:
            for miss in judged_together(step.assertions, known):
                run.miss(Mode.STRICT, step, miss)
        if Mode.COMPAT in run.modes:  # upstream sends the word as if it were a method
            try:
                await self._http.request("ASSERT", next(self._urls), timeout=TIMEOUT)
            except httpx.HTTPError as error:
                run.miss(Mode.COMPAT, step, f"no answer: {error!r}")

    async def _request(self, step: Step, run: Run, known: dict[str, Any]) -> Answer:
        headers = dict(step.headers)
        content = self._content(step, run, known)
        if content is not None and "content-type" not in {name.lower() for name in headers}:
            headers["Content-Type"] = JSON_TYPE
        url = next(self._urls) + expanded(step.path, known)
        begun = time.perf_counter()
        answer = await self._http.request(
            step.action, url, headers=headers, content=content, timeout=TIMEOUT
        )
        return Answer(
            status=answer.status_code,
            headers={name.lower(): value for name, value in reversed(answer.headers.multi_items())},
            text=answer.text,
            millis=(time.perf_counter() - begun) * 1000,
        )

    def _content(self, step: Step, run: Run, known: dict[str, Any]) -> bytes | None:
        if step.raw_body is not None:
            return step.raw_body.encode() if Mode.STRICT in run.modes else None
        if not step.has_body:
            return None
        return expanded(json.dumps(step.body, ensure_ascii=False), known).encode()
