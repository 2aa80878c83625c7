"""The handlers of the demo: ordinary typed functions, served on any protocol.

Each hands back what it was asked, so that the records can be checked against what was sent,
and how often it was handed out, so that one sees who had to start again.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass
from datetime import timedelta

from penstock import App, Backoff, BackoffKind, Context, Reject

app = App("shop")

QUICKLY = Backoff(BackoffKind.CONSTANT, base=timedelta(milliseconds=200), jitter=0.2)


@dataclass
class Handled:
    """What was asked, which execution answered, and how often the work was handed out."""

    item: int
    attempt: int
    delivery: int
    resumed_at: int = 0


@dataclass
class Carried:
    """Whose parcel it was, and when it was under way."""

    item: int
    customer: str
    from_s: float
    to_s: float
    delivery: int


def handled(ctx: Context, item: int, resumed_at: int = 0) -> Handled:
    return Handled(item, ctx.attempt, ctx.delivery, resumed_at)


@app.task
async def thumbnail(ctx: Context, item: int) -> Handled:
    """Fast: over before you look."""
    await asyncio.sleep(0.005)
    return handled(ctx, item)


@app.task
def transcode(ctx: Context, item: int, scenes: int = 8, pause: float = 0.25) -> Handled:
    """Slow, in a thread, and tells how far it is."""
    for scene in range(scenes):
        ctx.raise_if_lost()
        time.sleep(pause)
        ctx.progress(scene + 1, scenes)
    return handled(ctx, item)


@app.task(retries=4, backoff=QUICKLY)
async def charge(ctx: Context, item: int, fails: int) -> Handled:
    """The bank hangs up ``fails`` times, then it works."""
    if ctx.attempt <= fails:
        raise ConnectionError("the bank hung up")
    return handled(ctx, item)


@app.task
async def refund(item: int, days_ago: int) -> None:
    """Can never work, and says so: no retry."""
    raise Reject(f"order {item} is {days_ago} days old; 30 are allowed", status=422)


@app.task(retries=1, backoff=QUICKLY)
async def notify(item: int) -> None:
    """Fails every time: its attempts end, and it becomes a dead letter."""
    raise TimeoutError(f"nobody answers at {item}")


@app.task
async def backup(ctx: Context, item: int, steps: int = 12, pause: float = 0.3) -> Handled:
    """Long, with checkpoints: whoever takes it over goes on where the last one was."""
    first = ctx.saved or 0
    for step in range(first, steps):
        await asyncio.sleep(pause)
        await ctx.checkpoint(step + 1)
    return handled(ctx, item, resumed_at=first)


@app.task(cpu=True)
def checksum(ctx: Context, item: int, rounds: int = 20_000) -> Handled:
    """Computes, in a process of its own, so that nothing else waits for it."""
    digest = str(item).encode()
    for _ in range(rounds):
        digest = hashlib.sha256(digest).digest()
    return handled(ctx, item)


@app.task
async def parcel(ctx: Context, item: int, customer: str) -> Carried:
    """Carried one at a time for each customer, where the queue has groups."""
    began_s = time.time()
    await asyncio.sleep(0.03)
    return Carried(item, customer, began_s, time.time(), ctx.delivery)


@app.task(reply=True)
async def price(item: int) -> float:
    """Answers while the caller waits."""
    return item * 1.5
