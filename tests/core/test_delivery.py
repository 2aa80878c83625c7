"""The port: whatever has the few methods is a delivery, and its answers are values."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from penstock.core.delivery import (
    CancelAsked,
    Delivery,
    Facilities,
    Facility,
    Gone,
    Progress,
    Renewed,
    Settled,
    SettledKind,
    Unknown,
)
from penstock.core.invocation import Invocation


class Hand:
    """The smallest delivery."""

    invocation = Invocation(protocol="natq", task="t", work_id="w")
    lease = None

    async def renew(self) -> Renewed:
        return Renewed()

    async def settle(self, outcome: Any) -> Settled:
        return Settled(SettledKind.SUCCEEDED)

    async def save(self, checkpoint: Any) -> None: ...

    async def note(self, progress: Progress) -> None: ...


def test_whatever_has_the_methods_is_a_delivery() -> None:
    assert isinstance(Hand(), Delivery)
    assert not isinstance(object(), Delivery)


@pytest.mark.parametrize(
    "answer", [Settled(SettledKind.PARKED), Gone(), Unknown("cut"), Renewed(), CancelAsked("bye")]
)
def test_answers_are_values_that_cross_processes(answer: Any) -> None:
    copy = pickle.loads(pickle.dumps(answer))

    assert copy == answer
    assert hash(copy) == hash(answer)
    with pytest.raises((AttributeError, TypeError)):
        answer.reason = "changed"


def test_only_what_a_protocol_claims_is_native() -> None:
    can = Facilities()

    assert (can.checkpoint, can.cancel) == (Facility.NONE, Facility.NONE)
    assert can.max_delay is None
