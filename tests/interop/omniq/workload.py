"""A random while of everything that two sides can do to one queue, at instants of its own."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.interop.omniq.sides import Lease, Side, code_of
from tests.protocols.omniq.stories import T

__all__ = ["Workload"]

_STEPS = (
    ("publish", 6),
    ("reserve", 6),
    ("ack", 4),
    ("fail", 3),
    ("beat", 1),
    ("promote", 1),
    ("reap", 1),
    ("retry", 1),
    ("remove", 1),
    ("rest", 1),
)


class Workload:
    """``Workload([one, other], queue, seed).run(steps)``: each step is made by any of the sides.

    The laws of the queue are looked at after every call, because `Side` does. Ids are never used
    twice: what happens then is a fault of theirs that scenario 11 tells.
    """

    def __init__(self, sides: Sequence[Side], queue: str, seed: int) -> None:
        self.queue = queue
        self.now = T
        self.published = 0
        self._sides = sides
        self._dice = random.Random(seed)
        self._held: list[Lease] = []

    def run(self, steps: int) -> None:
        names, weights = zip(*_STEPS, strict=True)
        for name in self._dice.choices(names, weights, k=steps):
            self.now += self._dice.randrange(20)
            getattr(self, f"_{name}")(self._dice.choice(self._sides))

    def _publish(self, side: Side) -> None:
        side.publish(
            self.queue,
            {"n": self.published},
            job_id=f"j{self.published}",
            gid=self._dice.choice(["", "", "a", "b"]),
            group_limit=2,
            max_attempts=2,
            timeout_ms=400,
            backoff_ms=self._dice.choice([0, 100]),
            due_ms=self.now + 60 if self._dice.random() < 0.2 else 0,
            now_ms_override=self.now,
        )
        self.published += 1

    def _reserve(self, side: Side) -> None:
        got = side.reserve(self.queue, self.now)
        if isinstance(got, Lease):
            self._held.append(got)

    def _ack(self, side: Side) -> None:
        if lease := self._taken():
            side.ack(self.queue, lease.job_id, lease.lease_token, self.now)

    def _fail(self, side: Side) -> None:
        if lease := self._taken():
            side.fail(self.queue, lease.job_id, lease.lease_token, self.now, error="told to")

    def _beat(self, side: Side) -> None:
        if self._held:
            lease = self._dice.choice(self._held)
            side.heartbeat(self.queue, lease.job_id, lease.lease_token, self.now)

    def _promote(self, side: Side) -> None:
        side.promote(self.queue, self.now)

    def _reap(self, side: Side) -> None:
        """Leases that lapse are forgotten here as well, by what the queue itself says."""
        side.reap(self.queue, self.now)
        active = set(side.raw.zrange(f"{{{self.queue}}}:active", 0, -1))
        self._held = [lease for lease in self._held if lease.job_id in active]

    def _retry(self, side: Side) -> None:
        failed = side.raw.lrange(f"{{{self.queue}}}:failed", 0, -1)
        if failed:
            side.retry_failed(self.queue, self._dice.choice(failed), self.now)

    def _remove(self, side: Side) -> None:
        if self.published:
            name = f"j{self._dice.randrange(self.published)}"
            lane = self._dice.choice(["wait", "gwait", "delayed", "failed", "completed"])
            code_of(side.remove, self.queue, name, lane)

    def _rest(self, side: Side) -> None:
        self.now += 300

    def _taken(self) -> Lease | None:
        return self._held.pop(self._dice.randrange(len(self._held))) if self._held else None
