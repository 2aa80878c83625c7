"""The delivery contract: what every protocol's `Source` and `Delivery` keep, tried on a real wire.

A protocol joins with one small adapter and one line::

    class OurWire:                      # enqueue, enqueue_malformed, source, steal, cancel, state
        can = FACILITIES                # what the protocol has a place for; the rest is skipped

    @pytest.fixture
    async def wire(server) -> AsyncIterator[OurWire]: ...

    class TestOurDelivery(DeliveryContract): ...   # unchanged

The wire should retry at once (a backoff of a few milliseconds) and use a lease of a second or
two. `tests/runtime/scripted.py` is the shortest one, a store in memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

import pytest

from penstock.core.context import LeaseLost
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
    Source,
)
from penstock.core.lease import Proof
from penstock.core.outcome import (
    After,
    Cancelled,
    Continued,
    Done,
    Failed,
    Failure,
    Interrupted,
    Lost,
    Snoozed,
    Word,
)

__all__ = ["LIVE", "DeliveryContract", "Wire", "take_one"]

LIVE = "live"
"""The state of work that is not settled for good: it waits, runs, or will be tried again."""

PATIENCE_S = 10.0
AT_ONCE = After(timedelta(0))
BROKEN = Failure(code="handler_error", type="ValueError", message="broken")


class Wire(Protocol):
    """What a protocol's fixture gives the contract. Its work is all of one task."""

    can: Facilities

    async def enqueue(self, body: Any) -> str:
        """Put one piece of work in, and return its work id."""
        ...

    async def enqueue_malformed(self) -> str:
        """Put in something that cannot be read; its work id, or empty where it has none."""
        ...

    async def source(self) -> Source:
        """A taker of its own, as another worker would have. The fixture stops what is left."""
        ...

    async def steal(self, delivery: Delivery) -> None:
        """Make the lease of ``delivery`` somebody else's, as if it had lapsed long ago."""
        ...

    async def cancel(self, work_id: str) -> None:
        """Ask for running work to stop. Only called where ``can.cancel`` is not ``NONE``."""
        ...

    async def state(self, work_id: str) -> SettledKind | str:
        """What the store says: how it was settled for good, or `LIVE`."""
        ...


async def take_one(source: Source, within_s: float = PATIENCE_S) -> Delivery:
    """The next delivery, waited for with a deadline."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        for delivery in await source.take(1, timedelta(seconds=0.5)):
            return delivery
    raise AssertionError(f"nothing was handed out within {within_s} s")


async def nothing_comes(source: Source, for_s: float = 0.4) -> bool:
    return not await source.take(1, timedelta(seconds=for_s))


async def eventually_waiting(source: Source, *, some: bool) -> bool:
    """Whether the source comes to tell that work waits (``some``), or that none does."""
    end = time.monotonic() + PATIENCE_S
    while bool(await source.waiting()) != some:
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.01)
    return True


def kind_of(settlement: object) -> SettledKind:
    assert isinstance(settlement, Settled), settlement
    return settlement.kind


class DeliveryContract:
    """Subclass it unchanged."""

    # How work ends --------------------------------------------------------------------------

    async def test_a_value_settles_the_work_for_good(self, wire: Wire) -> None:
        work_id = await wire.enqueue({"n": 1})
        source = await wire.source()

        delivery = await take_one(source)
        settlement = await delivery.settle(Done({"answer": 42}))

        assert delivery.invocation.work_id == work_id
        assert delivery.invocation.body == {"n": 1}
        assert (delivery.invocation.attempt, delivery.invocation.delivery) == (1, 1)
        assert kind_of(settlement) is SettledKind.SUCCEEDED
        assert await wire.state(work_id) == SettledKind.SUCCEEDED
        assert await nothing_comes(source)

    async def test_an_exception_brings_the_work_back_with_the_next_attempt(
        self, wire: Wire
    ) -> None:
        work_id = await wire.enqueue({})
        source = await wire.source()

        settlement = await (await take_one(source)).settle(Failed(BROKEN))
        again = await take_one(source)

        assert kind_of(settlement) is SettledKind.RETRYING
        assert again.invocation.work_id == work_id
        assert (again.invocation.attempt, again.invocation.delivery) == (2, 2)
        await again.settle(Done())

    async def test_a_retry_that_names_its_delay_does_not_come_sooner(self, wire: Wire) -> None:
        need(wire.can.delay, "delay")
        await wire.enqueue({})
        source = await wire.source()

        first = await take_one(source)
        settled_at = time.monotonic()
        await first.settle(Failed(BROKEN, After(timedelta(seconds=0.7))))
        again = await take_one(source)

        assert time.monotonic() - settled_at >= 0.65
        await again.settle(Done())

    async def test_a_rejected_input_is_parked_and_never_comes_back(self, wire: Wire) -> None:
        work_id = await wire.enqueue({})
        source = await wire.source()

        settlement = await (await take_one(source)).settle(Failed(BROKEN, Word.NEVER))

        assert kind_of(settlement) is SettledKind.PARKED
        assert await wire.state(work_id) == SettledKind.PARKED
        assert await nothing_comes(source)

    async def test_a_snooze_costs_no_attempt_and_brings_its_checkpoint_back(
        self, wire: Wire
    ) -> None:
        need(wire.can.delay, "delay")
        need(wire.can.checkpoint, "checkpoint")
        await wire.enqueue({})
        source = await wire.source()

        first = await take_one(source)
        settlement = await first.settle(Snoozed(timedelta(seconds=0.1), {"page": 7}))
        again = await take_one(source)

        assert kind_of(settlement) is SettledKind.SNOOZED
        assert (again.invocation.attempt, again.invocation.delivery) == (1, 2)
        assert again.invocation.checkpoint is not None
        assert again.invocation.checkpoint.value == {"page": 7}
        await again.settle(Done())

    async def test_a_continue_calls_again_with_the_next_iteration(self, wire: Wire) -> None:
        need(wire.can.checkpoint, "checkpoint")
        await wire.enqueue({})
        source = await wire.source()

        settlement = await (await take_one(source)).settle(Continued({"cursor": "b"}))
        again = await take_one(source)

        assert kind_of(settlement) is SettledKind.CONTINUED
        assert (again.invocation.attempt, again.invocation.iteration) == (1, 1)
        assert again.invocation.checkpoint is not None
        assert again.invocation.checkpoint.value == {"cursor": "b"}
        await again.settle(Done())

    async def test_an_interruption_gives_back_without_spending_an_attempt(self, wire: Wire) -> None:
        need(wire.can.give_back, "give_back")
        await wire.enqueue({})
        source = await wire.source()

        settlement = await (await take_one(source)).settle(Interrupted())
        again = await take_one(source)

        assert kind_of(settlement) is SettledKind.RETURNED
        assert (again.invocation.attempt, again.invocation.delivery) == (1, 2)
        await again.settle(Done())

    async def test_a_body_arrives_as_it_was_sent(self, wire: Wire) -> None:
        body = {
            "text": 'Zürich ☃ \u0000 "quoted"',
            "numbers": [0, -1, 2**53, 0.1, 1e300],
            "nothing": None,
            "deep": {"er": [{"est": [True, False]}]},
            "": "an empty name",
        }
        await wire.enqueue(body)

        delivery = await take_one(await wire.source())

        assert delivery.invocation.body == body
        await delivery.settle(Done())

    # Leases ---------------------------------------------------------------------------------

    async def test_a_late_worker_cannot_settle_what_someone_else_took(self, wire: Wire) -> None:
        work_id = await wire.enqueue({})
        delivery = await take_one(await wire.source())

        await wire.steal(delivery)
        settlement = await delivery.settle(Done("too late"))

        assert isinstance(settlement, Gone)
        assert await wire.state(work_id) == LIVE

    async def test_settling_as_lost_writes_nothing(self, wire: Wire) -> None:
        work_id = await wire.enqueue({})
        delivery = await take_one(await wire.source())

        await wire.steal(delivery)
        settlement = await delivery.settle(Lost())

        assert not isinstance(settlement, Settled)
        assert await wire.state(work_id) == LIVE

    async def test_a_late_worker_hears_of_it_by_renewing(self, wire: Wire) -> None:
        await wire.enqueue({})
        delivery = await take_one(await wire.source())
        if delivery.lease is None or delivery.lease.proof is not Proof.CONFIRMED:
            pytest.skip("this wire never answers a renewal: the lease is inferred")

        await wire.steal(delivery)

        assert isinstance(await delivery.renew(), Gone)

    async def test_a_late_worker_cannot_replace_the_checkpoint_of_its_successor(
        self, wire: Wire
    ) -> None:
        need(wire.can.checkpoint, "checkpoint")
        await wire.enqueue({})
        late = await take_one(await wire.source())
        heir = await wire.source()
        await late.save({"by": "late", "at": 1})

        again = await take_one(heir, within_s=3 * short_term_s(late) + PATIENCE_S)
        await again.save({"by": "heir"})
        with suppress(LeaseLost):
            await late.save({"by": "late", "at": 2})
        await again.settle(Failed(BROKEN))
        third = await take_one(heir)

        assert third.invocation.checkpoint is not None
        assert third.invocation.checkpoint.value == {"by": "heir"}
        await third.settle(Done())

    async def test_renewing_keeps_work_from_others_beyond_one_term(self, wire: Wire) -> None:
        work_id = await wire.enqueue({})
        delivery = await take_one(await wire.source())
        other = await wire.source()
        term_s = short_term_s(delivery)

        end = time.monotonic() + 2 * term_s
        while time.monotonic() < end:
            assert isinstance(await delivery.renew(), Renewed)
            assert await nothing_comes(other, term_s / 4)

        assert kind_of(await delivery.settle(Done())) is SettledKind.SUCCEEDED
        assert await wire.state(work_id) == SettledKind.SUCCEEDED

    async def test_work_whose_lease_lapsed_goes_to_another(self, wire: Wire) -> None:
        work_id = await wire.enqueue({})
        late = await take_one(await wire.source())
        other = await wire.source()

        again = await take_one(other, within_s=3 * short_term_s(late) + PATIENCE_S)
        won = await again.settle(Done("in time"))
        lost = await late.settle(Done("late"))

        assert again.invocation.work_id == work_id
        assert kind_of(won) is SettledKind.SUCCEEDED
        assert isinstance(lost, Gone)

    async def test_a_request_to_cancel_is_heard_by_renewing(self, wire: Wire) -> None:
        need(wire.can.cancel, "cancel")
        work_id = await wire.enqueue({})
        delivery = await take_one(await wire.source())

        await wire.cancel(work_id)
        answer = await delivery.renew()

        assert isinstance(answer, (CancelAsked, Gone))
        settlement = await delivery.settle(Cancelled())
        assert isinstance(settlement, Gone) or kind_of(settlement) is SettledKind.CANCELLED
        assert await nothing_comes(await wire.source())

    # Taking ---------------------------------------------------------------------------------

    async def test_a_source_says_what_its_wire_can_do(self, wire: Wire) -> None:
        source = await wire.source()

        assert source.facilities == wire.can
        assert source.name

    async def test_a_source_tells_whether_work_waits_or_that_it_cannot(self, wire: Wire) -> None:
        source = await wire.source()
        if await source.waiting() is None:
            pytest.skip("this wire cannot tell what waits")
        await wire.enqueue({})
        assert await eventually_waiting(source, some=True)

        held = await take_one(source)  # what is held does not wait

        assert await eventually_waiting(source, some=False)
        await held.settle(Done())

    async def test_a_take_never_gives_more_than_was_asked_for(self, wire: Wire) -> None:
        ids = {await wire.enqueue({"n": n}) for n in range(5)}
        source = await wire.source()

        seen: set[str] = set()
        while seen != ids:
            taken = await source.take(2, timedelta(seconds=PATIENCE_S))
            assert 0 < len(taken) <= 2
            seen |= {delivery.invocation.work_id for delivery in taken}
            await settle_all(taken)

    async def test_an_empty_take_returns_after_its_wait(self, wire: Wire) -> None:
        source = await wire.source()

        began = time.monotonic()
        taken = await source.take(3, timedelta(seconds=0.2))

        assert not taken
        assert time.monotonic() - began < 5

    async def test_two_takers_never_hold_one_piece_at_once(self, wire: Wire) -> None:
        ids = {await wire.enqueue({"n": n}) for n in range(20)}
        ann, bob = await wire.source(), await wire.source()

        taken: list[Delivery] = []
        end = time.monotonic() + PATIENCE_S
        while len(taken) < len(ids) and time.monotonic() < end:
            hands = await asyncio.gather(
                *(source.take(3, timedelta(seconds=0.1)) for source in (ann, bob))
            )
            taken += [delivery for hand in hands for delivery in hand]
            await asyncio.gather(*(delivery.renew() for delivery in taken))  # all held till the end

        assert {delivery.invocation.work_id for delivery in taken} == ids
        assert len(taken) == len(ids)
        await settle_all(taken)

    async def test_stopping_gives_back_what_was_fetched_and_not_handed_out(
        self, wire: Wire
    ) -> None:
        ids = {await wire.enqueue({"n": n}) for n in range(3)}
        quitter, heir = await wire.source(), await wire.source()

        in_hand = await take_one(quitter)
        await quitter.stop()
        await quitter.stop()
        rest = [await take_one(heir), await take_one(heir)]

        assert {d.invocation.work_id for d in (in_hand, *rest)} == ids
        await settle_all([in_hand, *rest])

    # Telling --------------------------------------------------------------------------------

    async def test_a_saved_checkpoint_survives_to_the_next_attempt(self, wire: Wire) -> None:
        need(wire.can.checkpoint, "checkpoint")
        await wire.enqueue({})
        source = await wire.source()

        first = await take_one(source)
        await first.save({"rows": 100})
        await first.save({"rows": 200})
        await first.settle(Failed(BROKEN))
        again = await take_one(source)

        assert again.invocation.attempt == 2
        assert again.invocation.checkpoint is not None
        assert again.invocation.checkpoint.value == {"rows": 200}
        await again.settle(Done())

    async def test_progress_never_disturbs_the_work(self, wire: Wire) -> None:
        work_id = await wire.enqueue({})
        delivery = await take_one(await wire.source())

        await delivery.note(Progress(1, 2, "half"))
        await delivery.note(Progress())

        assert kind_of(await delivery.settle(Done())) is SettledKind.SUCCEEDED
        assert await wire.state(work_id) == SettledKind.SUCCEEDED

    async def test_what_cannot_be_read_is_rejected_and_not_retried(self, wire: Wire) -> None:
        work_id = await wire.enqueue_malformed()
        good = await wire.enqueue({"n": 1})
        source = await wire.source()

        delivery = await take_one(source)

        assert delivery.invocation.work_id == good
        await delivery.settle(Done())
        assert await nothing_comes(source)
        if work_id:
            assert await wire.state(work_id) == SettledKind.PARKED


def need(facility: Facility, name: str) -> None:
    if facility is Facility.NONE:
        pytest.skip(f"this wire has no place for it: {name} is NONE")


def short_term_s(delivery: Delivery) -> float:
    if delivery.lease is None:
        pytest.skip("this wire has no leases")
    term_s = delivery.lease.term.total_seconds()
    if term_s > 5:
        pytest.skip(f"the lease of this wire lasts {term_s} s: give the fixture a shorter one")
    return term_s


async def settle_all(taken: Sequence[Delivery]) -> None:
    for delivery in taken:
        await delivery.settle(Done())
