"""A consumer to be killed: ``omniq_groups_app.py URL QUEUE JOURNAL CONCURRENCY``, until SIGTERM.

Its handler writes down that it began and that it ended. A line in the journal is one write, so
the order of lines is the order in which things happened, over all processes.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys

from penstock.core import points
from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.context import JobContext
from tests.chaos.invariants import Journal

_LONGEST_S = 0.01


def tell_what_is_going_on() -> None:
    """For the message of a test that waits in vain."""
    for task in asyncio.all_tasks():
        task.print_stack()


async def main(url: str, queue: str, path: str, concurrency: str) -> None:
    journal = Journal(path)

    async def handle(ctx: JobContext) -> None:
        about = f"{ctx.gid} {ctx.attempt}"
        journal.note("started", ctx.job_id, about)
        await asyncio.sleep(random.uniform(0, _LONGEST_S) + ctx.payload.get("sleep", 0))
        points.reach("app.halfway")
        journal.note("finished", ctx.job_id, about)
        points.reach("app.finished")

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, tell_what_is_going_on)
    async with OmniqClient(url) as client:
        await client.consume(queue, handle, concurrency=int(concurrency))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
