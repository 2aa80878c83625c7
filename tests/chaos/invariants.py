"""What must be true of what is left: a ledger of facts, and laws that judge it.

Facts come from several witnesses: the test that enqueued, handlers that append lines to a
`Journal`, the history of a KV bucket. A law is a plain function from the `Ledger` to the
violations it finds, so each protocol can add its own beside the ones here.

A bucket that keeps one value per key forgets what happened between two looks. Open it
with a deeper history before the work starts (workers accept any), and `read_history`
sees every record in the order the server stored it.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "Fact",
    "Journal",
    "Law",
    "Ledger",
    "Violation",
    "count_is",
    "every_run_was_asked_for",
    "final_never_lives_again",
    "finished_at_most_once",
    "judge",
    "no_start_after_final",
    "nothing_lost",
    "runs_at_most",
]


@dataclass(frozen=True, slots=True)
class Fact:
    """Something a witness saw: ``kind`` is enqueued, started, finished, live, final, gone …"""

    kind: str
    id: str
    source: str
    at: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Violation:
    """A law that does not hold, for which id, and what shows it."""

    law: str
    id: str
    why: str

    def __str__(self) -> str:
        return f"{self.law}: {self.id}: {self.why}"


class Journal:
    """A file that handlers in any process append to; one write per line, so lines never mix.

    A line that was written survives SIGKILL of its writer.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, kind: str, id: str, detail: str = "") -> None:
        line = {"kind": kind, "id": id, "at": time.time(), "pid": os.getpid(), "detail": detail}
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


class Ledger:
    """Facts in the order they were added; only ever grows."""

    def __init__(self) -> None:
        self._facts: list[Fact] = []

    def note(
        self, kind: str, id: str, *, source: str = "test", detail: str = "", at: float = 0.0
    ) -> None:
        """Add a fact; without ``at`` it happened just now."""
        self._facts.append(Fact(kind, id, source, at or time.time(), detail))

    def __iter__(self) -> Iterator[Fact]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)

    def of(self, *kinds: str) -> list[Fact]:
        return [fact for fact in self._facts if fact.kind in kinds]

    def ids(self, kind: str) -> set[str]:
        return {fact.id for fact in self.of(kind)}

    def tally(self, kind: str) -> Counter[str]:
        """How many facts of that kind each id has."""
        return Counter(fact.id for fact in self.of(kind))

    def read_journal(self, path: str | Path) -> None:
        """Add what handlers wrote; a last line cut short by a crash of the machine is left out."""
        if not Path(path).exists():
            return
        for line in Path(path).read_text().splitlines():
            try:
                said = json.loads(line)
            except json.JSONDecodeError:
                continue
            source = f"pid {said['pid']}"
            self._facts.append(
                Fact(said["kind"], said["id"], source, said["at"], said.get("detail", ""))
            )

    async def read_history(
        self, bucket: Any, kind_of: Callable[[str, bytes], str], *, source: str = "kv"
    ) -> None:
        """Add each stored record of a stock nats-py ``bucket``, oldest first.

        ``kind_of(key, value)`` names the kind of a record (live, final); a delete marker
        is ``gone``. Facts carry the instant at which the server stored them.
        """
        watcher = await bucket.watchall(include_history=True)
        try:
            async for entry in watcher:
                if entry is None:
                    break
                kind = "gone" if entry.operation else kind_of(entry.key, entry.value)
                detail = (entry.value or b"")[:200].decode(errors="replace")
                stored_at = entry.created.timestamp()
                self.note(kind, entry.key, source=source, detail=detail, at=stored_at)
        finally:
            await watcher.stop()


Law = Callable[[Ledger], list[Violation]]


def judge(ledger: Ledger, laws: Iterable[Law]) -> list[Violation]:
    """All violations of all laws; an empty list is what we live for."""
    return [violation for law in laws for violation in law(ledger)]


def nothing_lost(ledger: Ledger) -> list[Violation]:
    """Every id that was enqueued has a final record."""
    missing = ledger.ids("enqueued") - ledger.ids("final")
    return [
        Violation("nothing lost", id, f"enqueued, never final; seen: {_story(ledger, id)}")
        for id in sorted(missing)
    ]


def final_never_lives_again(ledger: Ledger) -> list[Violation]:
    """After a final record of an id no live one follows."""
    final: set[str] = set()
    found: list[Violation] = []
    for fact in ledger.of("live", "final"):
        if fact.kind == "final":
            final.add(fact.id)
        elif fact.id in final:
            found.append(Violation("final never lives again", fact.id, _story(ledger, fact.id)))
    return found


def no_start_after_final(ledger: Ledger) -> list[Violation]:
    """No handler starts for an id whose final record is stored: finished work is not run again."""
    ended: dict[str, float] = {}
    for fact in ledger.of("final"):
        ended.setdefault(fact.id, fact.at)
    return [
        Violation("no start after final", fact.id, f"{fact.at - ended[fact.id]:.3f} s after it")
        for fact in ledger.of("started")
        if fact.at > ended.get(fact.id, fact.at)
    ]


def finished_at_most_once(ledger: Ledger) -> list[Violation]:
    """No id has two final records: nobody ran twice visibly."""
    return [
        Violation("finished at most once", id, f"{count} final records: {_story(ledger, id)}")
        for id, count in sorted(ledger.tally("final").items())
        if count > 1
    ]


def every_run_was_asked_for(ledger: Ledger) -> list[Violation]:
    """No handler started for an id that nobody enqueued."""
    strangers = ledger.ids("started") - ledger.ids("enqueued")
    return [
        Violation("every run was asked for", id, _story(ledger, id)) for id in sorted(strangers)
    ]


def runs_at_most(most: int) -> Law:
    """No id's handler started more often than that (deaths + 1 where each death may cost one)."""

    def law(ledger: Ledger) -> list[Violation]:
        return [
            Violation(f"runs at most {most}", id, f"started {count} times")
            for id, count in sorted(ledger.tally("started").items())
            if count > most
        ]

    return law


def count_is(**wanted: int) -> Law:
    """As many distinct ids of each kind as said: ``count_is(enqueued=500, final=500)``."""

    def law(ledger: Ledger) -> list[Violation]:
        return [
            Violation("count", kind, f"{len(ledger.ids(kind))} ids instead of {number}")
            for kind, number in wanted.items()
            if len(ledger.ids(kind)) != number
        ]

    return law


def _story(ledger: Ledger, id: str) -> str:
    """What happened to one id, witness by witness, for the person reading the failure."""
    seen: dict[str, list[str]] = defaultdict(list)
    for fact in ledger:
        if fact.id == id:
            seen[fact.source].append(fact.kind)
    return "; ".join(f"{source}: {' '.join(kinds)}" for source, kinds in seen.items()) or "nothing"
