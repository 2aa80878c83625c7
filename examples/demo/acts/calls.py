"""Requests that wait for their answer, one after the other, while all else goes on."""

from __future__ import annotations

from typing import NamedTuple

from examples.demo.act import Row
from penstock import Client
from penstock.core.errors import Waited

__all__ = ["Answers", "ask"]


class Answers(NamedTuple):
    """How many calls were made, how many answered right, and how often one was repeated."""

    calls: int
    right: int
    again: int

    @property
    def row(self) -> Row:
        told, came = f"{self.calls} answered", f"{self.right} answered"
        return Row("price", "request and reply (natq)", self.calls, told, came, self.again)


async def ask(client: Client, calls: int) -> Answers:
    """Nobody keeps a request: when the worker dies that was to answer it, it is asked again."""
    right = again = 0
    for item in range(calls):
        while True:
            try:
                right += await client.call("price", {"item": item}, timeout=3) == item * 1.5
                break
            except Waited:
                again += 1
    return Answers(calls, right, again)
