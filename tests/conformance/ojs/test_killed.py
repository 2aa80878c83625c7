"""The public cases with the server killed by SIGKILL, and started again, between all steps.

Whatever an answer said must still be so. Cases that measure time are left out: a start takes
longer than the delays that they watch. A few cases here, all others in ``make conformance``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from penstock.broker.embedded import EmbeddedNats
from tests.conformance.ojs import suites
from tests.conformance.ojs.case import Case, Step
from tests.conformance.ojs.runner import Runner
from tests.conformance.ojs.test_levels import FOLDER, POSSIBLE, passes

ALWAYS = frozenset(
    (
        "L0-LC-008",  # a cancelled job stays cancelled, whoever held it
        "L1-DLQ-002",  # another life of a dead letter
        "L3-GRP-001",  # a workflow begun by one server, ended by another
        "L4-BULK-002",  # all of a batch, or none
        "L4-UNIQ-003",  # a unique job takes the place of another
    )
)
UNTIMED = [
    case
    for case in POSSIBLE
    if case.waits_ms == 0
    and len(case.steps) > 1
    and not any("retryable" in str(step.assertions) for step in case.steps)  # for one second only
]
START_WITHIN_S = 60


class Mortal:
    """A server process at a fixed address, on a NATS that lives on."""

    def __init__(self, nats_url: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        self._nats_url = nats_url
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self._address}"

    def spawn(self) -> None:
        command = [sys.executable, "-m", "penstock", "serve", "--conformance"]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "NATS_"))}
        self._process = subprocess.Popen(
            [*command, "--http", self._address, "--nats", self._nats_url, "--log-level", "error"],
            env=kept,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    async def start(self) -> None:
        self.spawn()
        async with asyncio.timeout(START_WITHIN_S), httpx.AsyncClient() as http:
            while True:
                try:
                    if (await http.get(f"{self.url}/ready")).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    async def reborn(self, case: Case, step: Step) -> None:
        self.kill()
        await self.start()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner() -> AsyncIterator[Runner]:
    with EmbeddedNats() as nats:
        server = Mortal(nats.url)
        await server.start()
        try:
            # no connection outlives a kill: each request makes its own
            limits = httpx.Limits(max_keepalive_connections=0)
            async with httpx.AsyncClient(follow_redirects=True, limits=limits) as http:
                yield Runner([server.url], http, between=server.reborn)
        finally:
            server.kill()


def _params() -> list[object]:
    return [
        pytest.param(
            case,
            id=case.key,
            marks=() if case.test_id in ALWAYS else pytest.mark.slow,
        )
        for case in UNTIMED
    ]


@pytest.mark.skipif(FOLDER is None, reason=suites.missing())
@pytest.mark.xdist_group("ojs_killed")
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", _params())
async def test_what_was_answered_outlives_every_kill(case: Case, runner: Runner) -> None:
    await passes(case, runner)
