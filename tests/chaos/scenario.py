"""A scenario: a program, the windows to kill it in, its load, and the laws that must hold after.

Each protocol writes one `Scenario` and parametrises a test with its windows:

    @pytest.mark.parametrize("window", [KillPoint("natq.after_final_put"), RandomKills(5)], ids=str)
    async def test_no_job_is_lost(window, nats): await run_scenario(natq_scenario(nats), window, 7)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import Random

from tests.chaos.harness import Killer, Program
from tests.chaos.invariants import Law, Ledger, judge
from tests.chaos.points import Window

__all__ = ["Broken", "Scenario", "run_scenario"]


class Broken(AssertionError):
    """Laws were broken; the message tells the window and seed to repeat it with."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What to run, how to load it, when it is done and what must be true then.

    ``load`` enqueues and notes an ``enqueued`` fact per id; ``done`` says whether all
    work has ended; ``collect`` brings the witnesses' facts into the ledger at the end.
    """

    name: str
    program: Callable[[Mapping[str, str]], Program]
    load: Callable[[Ledger, Random], Awaitable[None]]
    done: Callable[[Ledger], Awaitable[bool]]
    collect: Callable[[Ledger], Awaitable[None]]
    laws: tuple[Law, ...]
    within: float = 60.0


async def run_scenario(scenario: Scenario, window: Window, seed: int) -> Ledger:
    """Load, kill in ``window``, restart until done, judge. Raises `Broken` if laws were broken."""
    dice = Random(seed)
    ledger = Ledger()
    await scenario.load(ledger, dice)
    killer = Killer(scenario.program)

    async def done() -> bool:
        return await scenario.done(ledger)

    await killer.run(window, done, dice=dice, within=scenario.within)
    await scenario.collect(ledger)
    violations = judge(ledger, scenario.laws)
    if violations:
        shown = "\n  ".join(str(violation) for violation in violations[:20])
        raise Broken(
            f"{scenario.name}, window {window}, seed {seed}: {len(violations)} violations "
            f"after {killer.deaths} deaths\n  {shown}"
        )
    return ledger
