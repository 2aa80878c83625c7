"""The application that is killed: one handler for every way in which a job can go.

Each handler writes into the journal before it does anything else, so the test knows who
was started, for which attempt, by whom.
"""

from __future__ import annotations

import asyncio
import os
import time
from datetime import timedelta
from pathlib import Path

from penstock import App, Backoff, Context, Continue, Reject, Retry, Snooze
from tests.chaos.invariants import Journal

LARGE = 40_000  # over the max_payload of the server in `natq_stage`

app = App("chaos")


def begin(ctx: Context, kind: str = "started") -> None:
    """Say that this run was started (or ``kind``); the line survives SIGKILL."""
    journal = Journal(os.environ["CHAOS_JOURNAL"])
    journal.note(kind, f"{ctx.task}.{ctx.run_id}", f"attempt {ctx.attempt}")
    journal.close()


@app.task
async def quiet(n: int) -> int:
    """Leaves no line in the journal: for counting in the hundred thousands."""
    return n


@app.task
def quiet_thread(n: int) -> int:
    return n


@app.task
async def plain(ctx: Context, n: int) -> int:
    begin(ctx)
    return n


@app.task
def threaded(ctx: Context, n: int) -> int:
    begin(ctx)
    return n


@app.task
async def flaky(ctx: Context) -> int:
    """Fails until its second attempt."""
    begin(ctx)
    if ctx.attempt < 2:
        raise Retry("not yet", after=0.02)
    return ctx.attempt


@app.task
async def rejected(ctx: Context) -> None:
    begin(ctx)
    raise Reject("this can never succeed")


@app.task(retries=1, backoff=Backoff(base=timedelta(milliseconds=20)))
async def hopeless(ctx: Context) -> None:
    """Uses up its two attempts and becomes a dead letter."""
    begin(ctx)
    raise RuntimeError("broken for good")


@app.task(retries=0)
async def deadly(ctx: Context) -> None:
    """Kills its worker whenever it is let."""
    begin(ctx)
    os.kill(os.getpid(), 9)


@app.task(retries=0)
async def mended(ctx: Context, gate: str) -> str:
    """Dies until somebody mends what it needs: the file ``gate``."""
    begin(ctx)
    if not Path(gate).exists():  # noqa: ASYNC240 - one small file
        raise RuntimeError("not mended yet")
    return "well"


@app.task
async def paged(ctx: Context, pages: int = 3) -> list[int]:
    """Goes on from its checkpoint, one page for each iteration."""
    begin(ctx)
    done = list(ctx.saved or [])
    done.append(len(done))
    if len(done) < pages:
        raise Continue(done)
    return done


@app.task
async def saving(ctx: Context) -> int:
    """Saves a checkpoint in the middle of its work."""
    begin(ctx)
    steps = int(ctx.saved or 0)
    for step in range(steps, 3):
        await ctx.checkpoint(step + 1)
    return 3


@app.task
async def snoozed(ctx: Context) -> str:
    begin(ctx)
    if ctx.saved is None:
        raise Snooze(0.02, checkpoint="slept")
    return str(ctx.saved)


@app.task
async def large(ctx: Context) -> str:
    """Returns more than a message may hold, another text in each attempt."""
    begin(ctx)
    return str(ctx.attempt) * LARGE


@app.task
async def held(ctx: Context, gate: str) -> int:
    """Runs until the file ``gate`` is there."""
    begin(ctx)
    while not Path(gate).exists():  # noqa: ASYNC240 - one small file
        await asyncio.sleep(0.01)
    return ctx.attempt


@app.task
def held_thread(ctx: Context, gate: str) -> int:
    begin(ctx)
    _wait_for(gate, ctx)
    return ctx.attempt


@app.task(cpu=True)
def held_process(ctx: Context, gate: str) -> int:
    begin(ctx)
    begin(ctx, f"in process {os.getpid()}")
    _wait_for(gate, ctx)
    return ctx.attempt


@app.task(reply=True)
async def held_reply(ctx: Context, gate: str) -> str:
    begin(ctx, "asked")
    while not Path(gate).exists():  # noqa: ASYNC240 - one small file
        await asyncio.sleep(0.01)
    return "answered"


def _wait_for(gate: str, ctx: Context) -> None:
    while not Path(gate).exists():
        ctx.raise_if_lost()
        time.sleep(0.01)
