"""Random lives of jobs, held against a model that knows nothing of the rules' code.

The model is a table: from which state which deed may lead where. Whatever is tried, in whatever
order and at whatever time, every record stays within it, and the index agrees with the records.
"""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from penstock.protocols.ojs import rules
from penstock.protocols.ojs.index import Index
from penstock.protocols.ojs.names import STATES, TERMINAL, WAITING
from penstock.protocols.ojs.record import MAX_TAIL, Record, decode_record, encode_record
from penstock.protocols.ojs.refusal import Refusal
from penstock.protocols.ojs.requests import ErrorGiven, Holding
from penstock.protocols.ojs.timing import Later, Purge, when_due
from penstock.protocols.ojs.told import events_of

from .making import OPTIONS, a_job, ack, later, nack

MAY: dict[str, dict[str, set[str]]] = {
    "claim": {"available": {"active"}},
    "ack": {"active": {"completed"}},
    "nack": {"active": {"retryable", "discarded"}},
    "requeue": {"active": {"available", "scheduled"}},
    "beat": {"active": {"active"}},
    "cancel": {state: {"cancelled"} for state in (*WAITING, "active")},
    "activate": {"pending": {"available"}},
    "redrive": {"discarded": {"available"}, "cancelled": {"available"}},
    "time": {
        "scheduled": {"available", "discarded"},
        "retryable": {"available", "discarded"},
        "available": {"discarded"},
        "pending": {"discarded"},
        "active": {"available", "retryable", "discarded"},
        **{state: {state} for state in TERMINAL},
    },
}


class Lives(RuleBasedStateMachine):
    jobs = Bundle("jobs")

    def __init__(self) -> None:
        super().__init__()
        self.chance = Random(5)
        self.seconds = 0.0
        self.revision = 0
        self.now: dict[str, Record] = {}
        self.fences: dict[str, set[str]] = {}
        self.index = Index()

    @property
    def at(self) -> Any:
        return later(self.seconds)

    def wrote(self, record: Record) -> None:
        self.revision += 1
        self.now[record.id] = record
        self.index.apply(record, self.revision)

    def try_it(self, deed: str, job_id: str, result: Record | Refusal) -> None:
        """Hold an attempted change against the table; write it if it is one."""
        before = self.now[job_id]
        allowed = MAY[deed].get(before.state, set())
        if isinstance(result, Refusal):
            assert not allowed or self.is_due(before), (deed, before.state, result)
            return
        assert result.state in allowed, (deed, before.state, result.state)
        if result is before:
            return
        assert result.n in (before.n, before.n + 1)
        assert deed == "redrive" or result.job.attempt >= before.job.attempt
        assert result.job.attempt - before.job.attempt == (deed == "claim") or deed == "redrive"
        if deed == "claim":
            assert result.held is not None
            assert result.held.fence not in self.fences.setdefault(job_id, set())
            self.fences[job_id].add(result.held.fence)
        self.wrote(result)

    def is_due(self, record: Record) -> bool:
        return bool(record.due_ms) and later(0).timestamp() * 1000 + self.seconds * 1000 >= (
            record.due_ms
        )

    @rule(
        target=jobs,
        priority=st.integers(-3, 3),
        wait=st.sampled_from([None, 2]),
        expires=st.sampled_from([None, 5]),
        attempts=st.integers(0, 3),
        pending=st.booleans(),
        dead=st.booleans(),
    )
    def enqueue(
        self, priority: int, wait: Any, expires: Any, attempts: int, pending: bool, dead: bool
    ) -> Any:
        options: dict[str, Any] = {"priority": priority, "pending": pending, "timeout_ms": 9000}
        if wait:
            options["scheduled_at"] = f"+PT{wait}S"
        if expires:
            options["expires_at"] = f"+PT{expires}S"
        options["retry"] = {
            "max_attempts": attempts,
            "on_exhaustion": "dead_letter" if dead else "discard",
        }
        if len(self.now) >= 12:
            return multiple()
        record = a_job(now=self.at, **options)
        self.wrote(record)
        return record.id

    @rule(job=jobs, worker=st.sampled_from(["w1", "w2"]))
    def claim(self, job: str, worker: str) -> None:
        record = self.now[job]
        self.try_it("claim", job, rules.claim(record, self.at, self.chance, OPTIONS, worker=worker))

    @rule(job=jobs)
    def ack(self, job: str) -> None:
        self.try_it("ack", job, ack(self.now[job], {"ok": 1}, now=self.at))

    @rule(job=jobs, retryable=st.sampled_from([None, False]))
    def nack(self, job: str, retryable: bool | None) -> None:
        error = ErrorGiven(retryable=retryable)
        self.try_it("nack", job, nack(self.now[job], now=self.at, error=error))

    @rule(job=jobs, delay=st.sampled_from([0, 1500]))
    def requeue(self, job: str, delay: int) -> None:
        self.try_it("requeue", job, nack(self.now[job], now=self.at, requeue=True, delay_ms=delay))

    @rule(job=jobs)
    def a_stranger_acks(self, job: str) -> None:
        hold = {"fence": "0" * 16}
        assert isinstance(ack(self.now[job], now=self.at, **hold), Refusal)

    @rule(job=jobs)
    def beat(self, job: str) -> None:
        result = rules.heartbeat(self.now[job], Holding(), self.at, self.chance)
        self.try_it("beat", job, result)

    @rule(job=jobs)
    def cancel(self, job: str) -> None:
        self.try_it("cancel", job, rules.cancel(self.now[job], self.at, self.chance, OPTIONS))

    @rule(job=jobs)
    def activate(self, job: str) -> None:
        self.try_it("activate", job, rules.activate(self.now[job], self.at, self.chance))

    @rule(job=jobs)
    def redrive(self, job: str) -> None:
        self.try_it("redrive", job, rules.redrive(self.now[job], self.at, self.chance))

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 1000.0, 2000.0]))
    def time_passes(self, seconds: float) -> None:
        """And the clock does everything that has come due, until nothing is."""
        self.seconds += seconds
        for _ in range(100):
            due = self.index.due(round(self.at.timestamp() * 1000), 99)
            if not due:
                return
            for job_id in due:
                found = when_due(self.now[job_id], self.at, self.chance, OPTIONS)
                assert not isinstance(found, Later), "it said it was due"
                if isinstance(found, Purge):
                    self.revision += 1
                    self.index.forget(job_id, self.revision)
                else:
                    self.try_it("time", job_id, found)
        raise AssertionError("the clock never comes to rest")

    @invariant()
    def every_record_reads_back_and_remembers_its_last_steps(self) -> None:
        for record in self.now.values():
            assert decode_record(encode_record(record)) == record
            assert len(record.tail) == min(record.n, MAX_TAIL)
            assert [s.n for s in record.tail] == sorted(s.n for s in record.tail)
            told = [event.id for event in events_of(record, 0)]
            assert len(told) == len(set(told))
            silent = record.state == "pending"  # nothing is told of a job that waits for a client
            assert told or silent

    @invariant()
    def what_is_held_is_active_and_nothing_else(self) -> None:
        for record in self.now.values():
            assert (record.held is not None) == (record.state == "active")
            assert not record.dead_letter or record.state == "discarded"
            assert record.is_terminal or record.at.purge_ms == 0 or record.due_ms

    @invariant()
    def the_counts_are_those_of_the_records(self) -> None:
        alive = [r for r in self.now.values() if r.id in self.index]
        counted = {state: sum(r.state == state for r in alive) for state in STATES}
        assert self.index.counts("default") == counted


Lives.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLives = Lives.TestCase
