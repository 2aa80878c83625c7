"""Two contenders of known cost, and one that breaks."""

from __future__ import annotations

import asyncio
import time

from bench.kit.run import Run


async def two_cents(run: Run) -> None:
    with run.measure() as meter:
        await asyncio.sleep(0.002)
    meter.latencies_s = [0.001, 0.002, 0.003]
    meter.more["cost"] = 2.0 * float(run.options["price"])


def four_cents(run: Run) -> None:
    with run.measure(run.count * 2) as meter:
        time.sleep(0.002)
    meter.more["cost"] = 4.0 * float(run.options["price"])


async def broken(run: Run) -> None:
    raise RuntimeError("out of ink")


async def silent(run: Run) -> None:
    return
