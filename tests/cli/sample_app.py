"""An application for the tests of the command line."""

from __future__ import annotations

import asyncio

from penstock import App, Context, Reject

app = App("sample")


@app.task(reply=True)
async def greet(name: str, times: int = 1) -> str:
    """Say hello."""
    return " ".join([f"hello {name}"] * times)


@app.task(reply=True)
async def refuse() -> None:
    raise Reject("not today", status=422, data={"why": "tuesday"})


@app.task(reply=True)
async def never() -> None:
    await asyncio.sleep(3600)


@app.task
async def double(number: int) -> dict[str, int]:
    return {"doubled": number * 2}


@app.task
async def sink(ctx: Context) -> None:
    raise Reject("can never work")


@app.task(retries=0)
async def fail() -> None:
    raise RuntimeError("broken for good")
