"""The scripted wire is honest: it keeps the same contract as every protocol."""

from __future__ import annotations

import pytest

from tests.contracts.delivery import DeliveryContract
from tests.runtime.scripted import ScriptedWire


class TestScriptedDelivery(DeliveryContract):
    @pytest.fixture
    async def wire(self) -> ScriptedWire:
        return ScriptedWire(term_s=1.0)
