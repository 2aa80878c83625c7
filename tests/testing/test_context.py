"""The context that users test handlers with behaves as the one a worker gives."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock import Context, LeaseLost
from penstock.core.codec import JsonError
from penstock.testing import a_context


async def backup(ctx: Context, tables: int) -> str:
    for table in range(ctx.saved or 0, tables):
        ctx.raise_if_lost()
        ctx.progress(table, tables)
        await ctx.checkpoint(table + 1)
    return f"{tables - (ctx.saved or 0)} by attempt {ctx.attempt}"


async def test_what_a_handler_says_is_remembered() -> None:
    ctx = a_context("backup")

    assert await backup(ctx, 2) == "2 by attempt 1"
    assert ctx.checkpoints == [1, 2]
    assert [report.done for report in ctx.reported] == [0, 1]


async def test_a_later_attempt_finds_what_was_saved() -> None:
    assert await backup(a_context(attempt=3, saved=4), 5) == "1 by attempt 3"


async def test_a_run_that_is_lost_stops() -> None:
    ctx = a_context()
    ctx.lose("somebody else has it")

    assert ctx.lost
    with pytest.raises(LeaseLost, match="somebody else"):
        await backup(ctx, 1)


def test_a_plain_handler_need_not_await_its_checkpoint() -> None:
    ctx = a_context()
    ctx.checkpoint({"page": 1})

    assert ctx.checkpoints == [{"page": 1}]


def test_what_no_worker_could_keep_is_refused_here_too() -> None:
    with pytest.raises(JsonError):
        a_context().checkpoint(object())


def test_the_facts_of_a_run_are_the_ones_that_were_chosen() -> None:
    ctx = a_context("resize", run_id="r", delivery=4, max_attempts=6, remaining=30)

    assert (ctx.task, ctx.run_id, ctx.attempt, ctx.delivery) == ("resize", "r", 1, 4)
    assert ctx.max_attempts == 6
    left = ctx.remaining()
    assert left is not None and timedelta(0) < left <= timedelta(seconds=30)
    ctx.log.info("goes to the log like any other")
