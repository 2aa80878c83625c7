"""The index: what follows the records knows what would be rebuilt from them."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocols.ojs import rules
from penstock.protocols.ojs.index import Index
from penstock.protocols.ojs.names import STATES
from penstock.protocols.ojs.record import Membership, Record
from penstock.protocols.ojs.shelf import Shelf
from penstock.protocols.ojs.steps import rewritten
from penstock.protocols.ojs.timing import Purge, when_due

from .making import OPTIONS, a_job, ack, an_active, dice, in_state, later, nack


def indexed(*records: Record) -> Index:
    index = Index()
    for revision, record in enumerate(records, start=1):
        index.apply(record, revision)
    return index


def ids(entries: Any) -> list[str]:
    return [entry.id for entry in entries]


def test_a_queue_gives_high_priority_first_and_then_the_order_of_enqueueing() -> None:
    low, first, second, high = (
        a_job(priority=p, now=later(n)) for n, p in enumerate((-5, 0, 0, 9))
    )
    index = indexed(second, low, high, first)
    assert ids(index.reserve("default", 9)) == ids([high.job, first.job, second.job, low.job])
    assert index.reserve("default", 1) == []


def test_what_was_reserved_and_not_taken_is_offered_again_in_its_place() -> None:
    first, second = a_job(now=later(0)), a_job(now=later(1))
    index = indexed(first, second)
    assert ids(index.reserve("default", 1)) == [first.id]
    index.release(first.id)
    assert ids(index.reserve("default", 2)) == [first.id, second.id]


def test_who_is_not_admitted_keeps_its_place() -> None:
    first, second = a_job("a", now=later(0)), a_job("b", now=later(1))
    index = indexed(first, second)
    assert ids(index.reserve("default", 5, lambda e: e.type == "b")) == [second.id]
    assert ids(index.reserve("default", 5)) == [first.id]


def test_counts_are_exact_in_every_state() -> None:
    index = indexed(*(in_state(state) for state in STATES for _ in range(2)))
    assert index.counts("default") == dict.fromkeys(STATES, 2)
    assert index.depth("default") == 6
    assert index.counts("never") == dict.fromkeys(STATES, 0)


def test_old_news_changes_nothing() -> None:
    record = a_job()
    active = rules.claim(record, later(0), dice(), OPTIONS)
    assert isinstance(active, Record)
    index = Index()
    assert index.apply(active, 7)
    assert not index.apply(record, 3)
    assert index.counts("default")["active"] == 1
    assert index.forget(record.id, 9)
    assert not index.apply(active, 8)
    assert len(index) == 0


def test_staged_jobs_show_together_when_their_transaction_is_committed() -> None:
    from msgspec.structs import replace

    staged = [replace(a_job(), txn="t1") for _ in range(3)]
    index = indexed(*staged)
    assert index.counts("default")["available"] == 0
    assert not index.has_ready("default")
    assert sorted(ids(index.staged())) == sorted(r.id for r in staged)
    index.commit("t1")
    assert index.counts("default")["available"] == 3
    assert list(index.staged()) == []


def test_a_commit_that_comes_before_its_jobs_is_remembered() -> None:
    from msgspec.structs import replace

    index = Index()
    index.commit("t1")
    index.apply(replace(a_job(), txn="t1"), 5)
    assert index.counts("default")["available"] == 1


def test_listings_are_newest_first_in_pages_over_all_queues() -> None:
    records = [a_job(queue=f"q{n % 2}", now=later(n)) for n in range(5)]
    index = indexed(*records)
    page, cursor = index.listed("available", limit=3)
    rest, end = index.listed("available", cursor=cursor, limit=3)
    assert ids(page) + ids(rest) == [r.id for r in reversed(records)]
    assert end == ""
    only, _ = index.listed("available", "q1")
    assert ids(only) == [records[3].id, records[1].id]


def test_due_times_come_in_order_and_can_be_put_off() -> None:
    soon, late = a_job(scheduled_at="+PT1S"), a_job(scheduled_at="+PT5S")
    index = indexed(late, soon)
    assert index.next_due_ms() == soon.due_ms
    assert index.due(late.due_ms, 10) == [soon.id, late.id]
    index.postpone(soon.id, late.due_ms + 1)
    assert index.due(late.due_ms, 10) == [late.id]


def test_the_newest_holder_of_a_unique_key_is_found_even_after_its_end() -> None:
    from msgspec.structs import replace

    old = replace(in_state("completed"), unique_key="k")
    new = replace(a_job(now=later(9)), unique_key="k")
    found = indexed(old, new).holder_of("k")
    assert found is not None and found.id == new.id


def test_a_workflows_standing_counts_only_what_is_over() -> None:
    from msgspec.structs import replace

    member = [replace(in_state(s), member=Membership(workflow="w", node=str(n)))
              for n, s in enumerate(("completed", "discarded", "active", "retryable"))]  # fmt: skip
    standing = indexed(*member).tally.of("w")
    assert (standing.jobs, standing.over, standing.succeeded) == (4, 2, 1)


# The law ------------------------------------------------------------------------------


def lives(seed: int, steps: int) -> list[tuple[Record | str, int]]:
    """A random history: records as they were stored, and purges as bare ids."""
    chance = Random(seed)
    now: dict[str, Record] = {}
    history: list[tuple[Record | str, int]] = []
    for revision in range(1, steps + 1):
        record = _one_step(chance, now, later(revision))
        if isinstance(record, str):
            del now[record]
        else:
            now[record.id] = record
        history.append((record, revision))
    return history


def _one_step(chance: Random, now: dict[str, Record], at: Any) -> Record | str:
    if not now or chance.random() < 0.3:
        options: dict[str, Any] = {"queue": chance.choice("ab"), "priority": chance.randint(-2, 2)}
        if chance.random() < 0.3:
            options["scheduled_at"] = "+PT3S"
        if chance.random() < 0.3:
            options["rate_limit"] = {"key": "k", "concurrency": 1}
        return a_job(now=at, **options)
    record = chance.choice(list(now.values()))
    if record.is_terminal and chance.random() < 0.3:
        return record.id
    deeds = (
        lambda: rules.claim(record, at, chance, OPTIONS, worker=chance.choice(("w1", "w2", ""))),
        lambda: ack(record, now=at),
        lambda: nack(record, now=at),
        lambda: rules.cancel(record, at, chance, OPTIONS),
        lambda: rules.redrive(record, at, chance),
        lambda: when_due(record, at, chance, OPTIONS),
    )
    for deed in chance.sample(deeds, len(deeds)):
        result: Any = deed()
        if isinstance(result, Record) and result is not record:
            return result
        if isinstance(result, Purge):
            return record.id
    return rewritten(record, chance)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 60), st.randoms(use_true_random=False))
def test_following_with_own_writes_ahead_gives_what_rebuilding_gives(
    seed: int, steps: int, chance: Random
) -> None:
    history = lives(seed, steps)
    followed = Index()
    for number, (record, revision) in enumerate(history):
        if chance.random() < 0.5:  # own writes may be known before the watch brings them
            ahead, at = history[min(number + chance.randint(0, 3), steps - 1)]
            _feed(followed, ahead, at)
        _feed(followed, record, revision)
    last = {(r if isinstance(r, str) else r.id): (r, v) for r, v in history}
    rebuilt = Index()
    for record, revision in last.values():
        _feed(rebuilt, record, revision)
    assert _facts(followed) == _facts(rebuilt)


def _feed(index: Index, record: Record | str, revision: int) -> None:
    if isinstance(record, str):
        index.forget(record, revision)
    else:
        index.apply(record, revision)


def _facts(index: Index) -> Any:
    everything = {
        (queue, state): ids(index.listed(state, queue, limit=999)[0])
        for queue in "ab"
        for state in STATES
    }
    return (
        everything,
        [index.counts(queue) for queue in "ab"],
        index.due(10**15, 999),
        {worker: index.held_by(worker) for worker in ("w1", "w2")},
        index.active_under("k"),
        ids(index.dead_letters(limit=999)[0]),
        {queue: ids(index.reserve(queue, 999)) for queue in "ab"},
    )


# Shelves ------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3000)), max_size=2500))
def test_a_shelf_is_a_sorted_set(moves: list[tuple[bool, int]]) -> None:
    shelf: Shelf[tuple[int]] = Shelf()
    model: set[tuple[int]] = set()
    for adds, number in moves:
        if adds:
            assert shelf.add((number,)) == ((number,) not in model)
            model.add((number,))
        else:
            assert shelf.remove((number,)) == ((number,) in model)
            model.discard((number,))
    assert list(shelf) == sorted(model) and len(shelf) == len(model)
    for probe in (0, 17, 1500, 3001):
        assert list(shelf.after((probe,))) == sorted(k for k in model if k > (probe,))
        assert list(shelf.before((probe,))) == sorted(k for k in model if k < (probe,))[::-1]


def test_a_shelf_of_many_chunks_keeps_its_order() -> None:
    shelf: Shelf[tuple[int]] = Shelf()
    numbers = list(range(5000))
    Random(3).shuffle(numbers)
    for number in numbers:
        shelf.add((number,))
    assert list(shelf) == [(n,) for n in range(5000)]
    assert list(shelf.before((2500,)))[:2] == [(2499,), (2498,)]
    for number in numbers[:4990]:
        assert shelf.remove((number,))
    assert list(shelf) == sorted((n,) for n in numbers[4990:])


def test_an_active_job_is_found_by_its_worker() -> None:
    record = an_active("w9")
    assert indexed(record).held_by("w9") == {record.id}
