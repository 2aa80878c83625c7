"""The ticker: one timer for all that is due, and none when nothing is."""

from __future__ import annotations

import asyncio
from math import inf

import pytest

from penstock.runtime.ticker import Ticker
from tests.runtime.stage import Clock, eventually


class Entry:
    def __init__(self, due: float, then: float = inf) -> None:
        self.due = due
        self.then = then
        self.ticked: list[float] = []

    def tick(self, now: float) -> None:
        self.ticked.append(now)
        self.due = self.then


async def test_what_is_due_is_ticked_and_what_is_not_is_left_alone() -> None:
    clock = Clock()
    ticker = Ticker(clock)
    soon, later = Entry(clock() + 1), Entry(clock() + 100)
    ticker.add(soon)
    ticker.add(later)

    clock.jumped_s += 2
    ticker.sweep()

    assert (len(soon.ticked), len(later.ticked)) == (1, 0)
    ticker.stop()


async def test_an_idle_ticker_has_no_timer() -> None:
    ticker = Ticker()
    entry = Entry(inf)
    ticker.add(entry)
    assert ticker._handle is None

    entry.due = 0.0
    ticker.moved(entry)
    assert ticker._handle is not None
    await eventually(lambda: entry.ticked)
    assert ticker._handle is None


async def test_an_entry_that_comes_nearer_is_ticked_sooner() -> None:
    clock = Clock()
    ticker = Ticker(clock)
    entry = Entry(clock() + 3600)
    ticker.add(entry)

    entry.due = clock()
    ticker.moved(entry)

    await eventually(lambda: entry.ticked)
    ticker.stop()


async def test_what_an_earlier_tick_ended_is_not_ticked_any_more() -> None:
    ticker = Ticker()
    ticked: list[Pair] = []

    class Pair(Entry):
        other: Pair

        def tick(self, now: float) -> None:
            super().tick(now)
            ticked.append(self)
            ticker.discard(self.other)

    one, two = Pair(0), Pair(0)
    one.other, two.other = two, one
    ticker.add(one)
    ticker.add(two)

    ticker.sweep()

    assert len(ticked) == 1
    ticker.stop()


async def test_a_tick_that_raises_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ticker = Ticker()

    class Broken(Entry):
        def tick(self, now: float) -> None:
            self.due = inf
            raise RuntimeError("a bug")

    broken, good = [Broken(0) for _ in range(5)], [Entry(0, then=0) for _ in range(5)]
    for entry in (*broken, *good):
        ticker.add(entry)

    await eventually(lambda: all(len(entry.ticked) > 1 for entry in good))
    assert "a bug" in caplog.text
    ticker.stop()


async def test_after_stop_nothing_ticks() -> None:
    ticker, entry = Ticker(), Entry(0)
    ticker.add(entry)

    ticker.stop()
    await asyncio.sleep(0.05)

    assert entry.ticked == []
