"""Due times: the earliest first, whatever was moved or removed in between."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.core.due import DueHeap

KEYS = st.sampled_from("abcdefgh")
TIMES = st.integers(0, 20)


def test_due_keys_come_out_earliest_first() -> None:
    heap: DueHeap[str, int] = DueHeap()
    for key, at in (("late", 9), ("first", 1), ("second", 2), ("also second", 2)):
        heap.put(key, at)

    assert heap.pop_due(5) == ["first", "second", "also second"]
    assert heap.next_at == 9
    assert list(heap) == ["late"]


def test_a_key_can_be_moved_both_ways() -> None:
    heap: DueHeap[str, datetime] = DueHeap()
    now = datetime(2027, 1, 1, tzinfo=UTC)
    heap.put("job", now)
    heap.put("job", now + timedelta(hours=1))

    assert heap.pop_due(now) == []
    heap.put("job", now)
    assert heap.pop_due(now) == ["job"]
    assert heap.pop_due(now + timedelta(hours=2)) == []


def test_no_more_come_out_than_asked_for() -> None:
    heap: DueHeap[int, int] = DueHeap()
    for n in range(5):
        heap.put(n, n)

    assert heap.pop_due(9, most=2) == [0, 1]
    assert len(heap) == 3


def test_moving_one_key_for_ever_takes_no_more_memory() -> None:
    heap: DueHeap[str, int] = DueHeap()
    for at in range(100_000):
        heap.put("lease", at)

    assert len(heap._heap) < 200


class AgainstADict(RuleBasedStateMachine):
    """The heap is a dict of times, only quicker to ask."""

    def __init__(self) -> None:
        super().__init__()
        self.heap: DueHeap[str, int] = DueHeap()
        self.model: dict[str, int] = {}

    @rule(key=KEYS, at=TIMES)
    def put(self, key: str, at: int) -> None:
        self.heap.put(key, at)
        self.model[key] = at

    @rule(key=KEYS)
    def remove(self, key: str) -> None:
        assert self.heap.remove(key) is (self.model.pop(key, None) is not None)

    @rule(now=TIMES, most=st.none() | st.integers(0, 3))
    def pop(self, now: int, most: int | None) -> None:
        popped = [(self.model.pop(key), key) for key in self.heap.pop_due(now, most)]
        assert [at for at, _ in popped] == sorted(at for at, _ in popped)
        assert all(at <= now for at, _ in popped)
        assert len(popped) == most or all(at > now for at in self.model.values())

    @invariant()
    def they_agree(self) -> None:
        assert {key: self.heap.at(key) for key in self.heap} == self.model
        assert self.heap.next_at == min(self.model.values(), default=None)


TestAgainstADict = AgainstADict.TestCase
TestAgainstADict.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
