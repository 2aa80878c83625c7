"""Fixtures for the kill tests: brokers that tests may stop, kill and freeze."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.chaos.natq_stage import MAX_PAYLOAD, NatqStage
from tests.chaos.ojs_stage import OjsStage
from tests.chaos.omniq_stage import OmniqStage
from tests.chaos.servers import NatsServer, RedisServer


@pytest.fixture
async def natq(tmp_path: Path) -> AsyncIterator[NatqStage]:
    """A NATS server of the test's own with natq prepared on it."""
    async with NatsServer(extra=MAX_PAYLOAD) as server:
        stage = await NatqStage.on(server, tmp_path)
        try:
            yield stage
        finally:
            await stage.close()


@pytest.fixture
async def omniq(tmp_path: Path) -> AsyncIterator[OmniqStage]:
    """A Redis of the test's own that loses nothing it has answered, and a producer on it."""
    async with RedisServer(aof="always") as server:
        stage = await OmniqStage.on(server, tmp_path)
        try:
            yield stage
        finally:
            await stage.close()


@pytest.fixture
async def ojs(tmp_path: Path) -> AsyncIterator[OjsStage]:
    """A NATS server of the test's own and a producer of Open Job Spec jobs on it."""
    async with NatsServer() as server:
        stage = await OjsStage.on(server, tmp_path)
        try:
            yield stage
        finally:
            await stage.close()
