"""``python -m examples.demo``: exit code 0 when every row of every table holds."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from examples.demo.acts import ACTS
from examples.demo.show import Show
from examples.demo.stage import Stage
from penstock.core.errors import PenstockError

BROKEN = 1
COULD_NOT_RUN = 3
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    names = [act.name for act in ACTS]
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--act", choices=names, action="append", help="only this one [all]")
    parser.add_argument("--scale", type=float, default=1.0, help="factor for all counts [1]")
    parser.add_argument("--plain", action="store_true", help="lines instead of bars")
    chosen = parser.parse_args(arguments)
    show = Show(plain=chosen.plain)
    try:
        return asyncio.run(_play(show, chosen.act or names, chosen.scale))
    except KeyboardInterrupt:
        show.say("interrupted; everything that was started has been stopped")
        return INTERRUPTED
    except PenstockError as error:
        print(f"demo: {error.message}", file=sys.stderr)
        if error.remedy:
            print(f"  try: {error.remedy}", file=sys.stderr)
        return COULD_NOT_RUN


async def _play(show: Show, names: Sequence[str], scale: float) -> int:
    proofs = []
    async with Stage() as stage:
        for act in ACTS:
            if act.name in names:
                show.title(act.title)
                proofs.append((act, await act.play(stage, show, scale)))
        show.say("stopping everything")
    for act, proof in proofs:
        show.proof(act.title, proof)
    holds = all(proof.holds for _, proof in proofs)
    print("\nnothing was lost" if holds else "\nNOT what had to come out: see WRONG above")
    return 0 if holds else BROKEN


if __name__ == "__main__":
    sys.exit(main())
