"""Credit: never more in hand than slots, nobody starved, nothing leaked."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.runtime.credit import Credit, Grant, Pool, Seat

LONG = timedelta(seconds=5)


class FakeTime:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def granted(credit: Credit, *seats: Seat) -> list[Grant | None]:
    """What each of these is granted in one deal; ``None`` for those left in line."""
    asks = [asyncio.ensure_future(credit.grant(seat)) for seat in seats]
    await asyncio.sleep(0)
    credit.deal()
    await asyncio.sleep(0)
    given_ = [ask.result() if ask.done() else None for ask in asks]
    for ask in asks:
        ask.cancel()
    await asyncio.gather(*asks, return_exceptions=True)
    return given_


async def test_a_source_alone_may_take_all_that_is_free_and_wait_long() -> None:
    credit = Credit(10)

    assert await granted(credit, credit.seat()) == [Grant(10, LONG)]
    assert credit.free == 0


async def test_what_was_not_used_comes_back() -> None:
    credit = Credit(10)
    seat = credit.seat()

    await granted(credit, seat)
    credit.took(seat, 10, 3)
    assert credit.free == 7
    for _ in range(3):
        credit.release(seat)
    assert (credit.free, seat.held, seat.polling) == (10, 0, 0)


async def test_a_seat_with_a_cap_gets_no_more_than_that() -> None:
    credit = Credit(10)

    assert await granted(credit, credit.seat(2)) == [Grant(2, LONG)]


async def test_seats_may_share_a_pool_that_is_smaller_than_the_slots() -> None:
    credit, pool = Credit(10), Pool(3)
    ann, bob, free = credit.seat(None, pool), credit.seat(2, pool), credit.seat()
    for seat in (ann, bob, free):
        seat.want = 100

    first, second, third = await granted(credit, ann, bob, free)

    assert first == Grant(3, first.wait if first else LONG)
    assert second is None
    assert third is not None
    credit.took(ann, 3, 1)
    assert pool.held == 1
    (then,) = await granted(credit, bob)
    assert then is not None
    assert then.count == 2


async def test_an_idle_source_holds_one_credit_and_a_busy_one_gets_a_share() -> None:
    credit = Credit(12)
    busy, idle = credit.seat(), credit.seat()
    await granted(credit, busy)
    credit.took(busy, 1, 1)

    first, second = await granted(credit, busy, idle)

    assert first is not None
    assert second is not None
    assert first.count > second.count == 1


async def test_idle_sources_wait_long_with_one_credit_each() -> None:
    credit = Credit(12)

    shares = await granted(credit, *(credit.seat() for _ in range(3)))

    assert shares == [Grant(1, LONG)] * 3


async def test_busy_sources_share_evenly() -> None:
    credit = Credit(12)
    seats = [credit.seat() for _ in range(3)]
    for seat in seats:
        seat.want = 100

    shares = await granted(credit, *seats)

    assert [share.count for share in shares if share] == [4, 4, 4]


async def test_with_more_idle_sources_than_slots_each_is_looked_at_in_turn() -> None:
    credit = Credit(2)
    seats = [credit.seat() for _ in range(20)]
    polled: set[int] = set()
    pollers = [asyncio.create_task(_poll(credit, seat, n, polled)) for n, seat in enumerate(seats)]
    async with asyncio.timeout(30):
        while len(polled) < len(seats):
            await asyncio.sleep(0.005)
            assert credit.free >= 0
    for poller in pollers:
        poller.cancel()
    await asyncio.gather(*pollers, return_exceptions=True)

    assert credit.free == 2


async def _poll(credit: Credit, seat: Seat, number: int, polled: set[int]) -> None:
    while True:
        grant = await credit.grant(seat)
        try:
            assert grant.wait <= timedelta(seconds=0.25)
            polled.add(number)
            await asyncio.sleep(0)
        finally:
            credit.took(seat, grant.count, 0)


async def test_a_busy_source_does_not_starve_an_idle_one_that_gets_work() -> None:
    time = FakeTime()
    credit = Credit(4, clock=time)
    busy, idle = credit.seat(), credit.seat()
    busy.want = 100
    glances = 0
    for _ in range(50):
        time.now += 0.02
        for seat, grant in zip((busy, idle), await granted(credit, busy, idle), strict=True):
            if grant is None:
                continue
            glances += seat is idle
            credit.took(seat, grant.count, grant.count if seat is busy else 0)
            for _ in range(grant.count if seat is busy else 0):
                credit.release(seat)

    assert glances >= 5  # in one second


async def test_a_wait_that_is_cancelled_gives_its_credit_back() -> None:
    credit = Credit(1)
    seat = credit.seat()
    waiting = asyncio.ensure_future(credit.grant(seat))
    await asyncio.sleep(0)
    credit.deal()  # granted and cancelled in one turn of the loop
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    assert (credit.free, seat.held, seat.polling) == (1, 0, 0)
    assert await granted(credit, seat) == [Grant(1, LONG)]


@settings(deadline=None, max_examples=60)
@given(
    slots=st.integers(1, 20),
    caps=st.lists(st.one_of(st.none(), st.integers(1, 5)), min_size=1, max_size=6),
    seed=st.integers(0, 2**32),
)
def test_over_any_history_no_credit_is_made_or_lost(
    slots: int, caps: list[int | None], seed: int
) -> None:
    asyncio.run(_live(slots, caps, Random(seed)))


async def _live(slots: int, caps: list[int | None], dice: Random) -> None:
    credit = Credit(slots, clock=FakeTime())
    seats = [credit.seat(cap) for cap in caps]
    running: list[Seat] = []

    async def source(seat: Seat) -> None:
        for _ in range(30):
            grant = await credit.grant(seat)
            got = 0
            try:
                assert 1 <= grant.count <= slots
                await asyncio.sleep(0)
                got = dice.randint(0, grant.count)
            finally:
                credit.took(seat, grant.count, got)
                running.extend([seat] * got)

    sources = [asyncio.create_task(source(seat)) for seat in seats]
    for _ in range(400):
        await asyncio.sleep(0)
        if running and dice.random() < 0.7:
            credit.release(running.pop(dice.randrange(len(running))))
        if dice.random() < 0.05:
            dice.choice(sources).cancel()
        held = sum(seat.held for seat in seats)
        assert credit.free + held == slots
        assert credit.free >= 0
        assert all(seat.held <= seat.cap for seat in seats)
        assert sum(seat.held - seat.polling for seat in seats) == len(running)
    for one in sources:
        one.cancel()
    await asyncio.gather(*sources, return_exceptions=True)
    for seat in running:
        credit.release(seat)
    assert credit.free == slots
