"""`python -m bench.parts`: what the parts of a no-op natq job cost, each alone, in microseconds.

The best of many short windows counts, because other work on the machine only ever adds. The
server takes part in nothing here but its first words: frames are built and thrown away.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import uvloop

from bench.peers.natq_penstock import app
from penstock.broker.embedded import EmbeddedNats
from penstock.broker.errors import LinkClosed
from penstock.broker.fast_link import FastLink
from penstock.broker.frames import Splitter
from penstock.broker.link import Link
from penstock.broker.message import Message, parse_ack_subject
from penstock.broker.options import NatsOptions
from penstock.broker.publisher import _settle_write
from penstock.broker.requests import Requests
from penstock.core.ids import uuid7
from penstock.core.outcome import Done
from penstock.core.policy import RetryPolicy
from penstock.protocols.natq.options import NatqOptions
from penstock.protocols.natq.records import Records
from penstock.protocols.natq.room import Room
from penstock.protocols.natq.rules import settlement
from penstock.protocols.natq.wire import Output, encode_output, parse_input

WINDOWS, TIMES = 25, 1_000
ACK = b"$JS.ACK.natq_jobs.natq_worker_noop.1.12345.12345.1763584646123456789.19999"
STORED = b'{"stream":"KV_natq_results", "seq":12345}'


@dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    b: int
    c: int
    d: int
    e: int


class Struct(msgspec.Struct, frozen=True):
    a: int
    b: int
    c: int
    d: int
    e: int


def main() -> None:
    with EmbeddedNats() as server, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for what, cost_us in runner.run(_costs(server.url)).items():
            print(f"| {what} | {cost_us:.2f} |")


async def _costs(url: str) -> dict[str, float]:
    link = await Link.open(NatsOptions.from_url(url, max_in_flight=1 << 30))
    assert isinstance(link, FastLink)
    room = await Room.open(link, NatqOptions())
    run_id = uuid7()
    payload = b'{"n":123,"runId":"%b"}' % run_id.encode()
    records = Records(room.results, "noop", worker_id=run_id)
    binding = app.registry.get("noop").binding
    bind, encode = binding.bind, binding.encode_result
    policy, done = RetryPolicy(), Done(123)

    def forget() -> None:
        link.client._pending = []
        link.client._pending_data_size = 0
        link._requests.waiting.clear()

    def decided() -> bytes:
        settlement(done, task_id="noop", run_id=run_id, attempt=1, policy=policy)
        return encode_output(Output(run_id, "noop", 200, 123))

    costs = {
        "a conditional write, up to its frame": _best(lambda: records.begin(run_id, 7), forget),
        "the answer to a write": _answers(),
        "an ack": _best(lambda: Message(link, b"s", ACK, None, b"").ack(), forget),
        "reading the ack subject": _best(lambda: parse_ack_subject(ACK)),
        "reading the input": _best(lambda: parse_input(payload)),
        "binding arguments": _best(lambda: bind({"n": 123})),
        "making the result JSON-ready": _best(lambda: encode(123)),
        "deciding, and encoding the final record": _best(decided),
        "an asyncio task that waits once": await _best_of(_tasks),
        "a frozen dataclass of five fields": _best(lambda: Frozen(1, 2, 3, 4, 5)),
        "a frozen struct of five fields": _best(lambda: Struct(1, 2, 3, 4, 5)),
    }
    forget()
    await link.close(drain=False)
    return costs


def _answers() -> float:
    requests = Requests(b"_INBOX.aaaaaaaaaaaaaaaaaaaaaa.", 1 << 30)
    splitter = Splitter()
    splitter.handlers[b"1"] = requests.answered
    replies: list[bytes] = []

    def ask() -> None:
        replies[:] = [requests.add(b"s", 60.0, _settle_write)[0] for _ in range(TIMES)]

    best = float("inf")
    for _ in range(WINDOWS):
        ask()
        chunk = b"".join(b"MSG %b 1 %d\r\n%b\r\n" % (r, len(STORED), STORED) for r in replies)
        began = time.perf_counter()
        splitter.feed(chunk)
        best = min(best, time.perf_counter() - began)
    requests.fail_all(LinkClosed("measured"))
    return best / TIMES * 1e6


async def _tasks() -> None:
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(TIMES)]

    async def wait_for(future: asyncio.Future[None]) -> None:
        await future

    tasks = [loop.create_task(wait_for(future), name="job") for future in futures]
    await asyncio.sleep(0)
    for future in futures:
        future.set_result(None)
    await asyncio.wait(tasks)


def _best(do: Callable[[], Any], after: Callable[[], None] | None = None) -> float:
    best = float("inf")
    for _ in range(WINDOWS):
        began = time.perf_counter()
        for _ in range(TIMES):
            do()
        best = min(best, time.perf_counter() - began)
        if after is not None:
            after()
    return best / TIMES * 1e6


async def _best_of(do: Callable[[], Awaitable[None]]) -> float:
    best = float("inf")
    for _ in range(WINDOWS):
        began = time.perf_counter()
        await do()
        best = min(best, time.perf_counter() - began)
    return best / TIMES * 1e6


if __name__ == "__main__":
    main()
