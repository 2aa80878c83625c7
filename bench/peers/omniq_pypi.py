"""PyPI omniq 1.7.0 at the same work, through its public calls; runs in an environment of its own.

As a program it publishes now and then for a consumer of ours and says when:
``echo '{"url": …, "queue": …, "count": …}' | python -m bench.peers.omniq_pypi``.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from typing import Any

import redis
from omniq.client import OmniqClient

from bench.kit.run import Run

QUEUE = "bench"


def publish_one_by_one(run: Run) -> None:
    client = _client(run.url)
    client.publish(queue=QUEUE, payload={"n": -1})
    with run.measure():
        for n in range(run.count):
            client.publish(queue=QUEUE, payload={"n": n})


def lease_one_by_one(run: Run) -> None:
    client = _client(run.url)
    _lease_and_ack(client, 50)
    for n in range(50):
        client.publish(queue=QUEUE, payload={"n": n})
    raw = redis.Redis.from_url(run.url)
    raw.config_resetstat()
    with run.measure() as meter:
        _lease_and_ack(client, run.count)
    told = raw.info("commandstats").values()
    meter.more = {"steps": sum(command["calls"] for command in told) / run.count}


def consume(run: Run) -> None:
    """Their consumer wants the main thread for its signals; a thread watches for the end."""
    client = _client(run.url)
    raw = redis.Redis.from_url(run.url)
    left = run.count
    done = threading.Event()

    def noop(_ctx: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    def consuming() -> None:
        client.consume(queue=QUEUE, handler=noop)

    with run.measure():
        threading.Thread(target=consuming, daemon=True).start()
        done.wait()
        while raw.zcard(f"{{{QUEUE}}}:active"):
            time.sleep(0.002)


def wait_idle(run: Run) -> None:
    client = _client(run.url)
    raw = redis.Redis.from_url(run.url)
    started: dict[str, float] = {}

    def noop(ctx: Any) -> None:
        started[ctx.job_id] = time.monotonic()

    def consuming() -> None:
        _client(run.url).consume(queue=QUEUE, handler=noop)

    threading.Thread(target=consuming, daemon=True).start()
    first = client.publish(queue=QUEUE, payload={})
    while first not in started:
        time.sleep(0.01)
    raw.config_resetstat()
    began = time.monotonic()
    with run.measure(count=run.options["idle_s"]) as meter:
        time.sleep(run.options["idle_s"])
    calls = raw.info("commandstats")["cmdstat_evalsha"]["calls"]
    meter.more = {"evalsha_s": calls / (time.monotonic() - began)}
    published = _now_and_then(client, QUEUE, run.count)
    while published.keys() - started.keys():
        time.sleep(0.01)
    meter.latencies_s = [started[job_id] - at for job_id, at in published.items()]


def cost(run: Run) -> None:
    client = _client(run.url)
    raw = redis.Redis.from_url(run.url)
    held: list[Any] = []

    def of(act: Any, times: int = run.count) -> float:
        for _ in range(20):
            act()
        raw.config_resetstat()
        for _ in range(times):
            act()
        return float(raw.info("commandstats")["cmdstat_evalsha"]["usec"]) / times

    def each(call: Any) -> Any:
        at = iter(list(held) * 2)

        def act() -> None:
            job = next(at)
            call(queue=QUEUE, job_id=job.job_id, lease_token=job.lease_token)

        return act

    with run.measure() as meter:
        sha = raw.script_load("return 1")
        nothing = of(lambda: raw.evalsha(sha, 1, "{x}:meta"), 5 * run.count)
        publish = of(lambda: client.publish(queue=QUEUE, payload={"n": 1}))
        for n in range(run.count):
            client.publish(queue=QUEUE, payload={"n": n})
        reserve = of(lambda: held.append(client.reserve(queue=QUEUE)))
        beat = of(each(client.heartbeat))
        ack = of(each(client.ack_success))
    meter.more = {
        "noop_us": nothing,
        "publish_x": publish / nothing,
        "reserve_x": reserve / nothing,
        "heartbeat_x": beat / nothing,
        "ack_x": ack / nothing,
    }


def _client(url: str) -> OmniqClient:
    return OmniqClient(redis=redis.Redis.from_url(url, decode_responses=True))


def _lease_and_ack(client: OmniqClient, count: int) -> None:
    for _ in range(count):
        job: Any = client.reserve(queue=QUEUE)
        client.ack_success(queue=QUEUE, job_id=job.job_id, lease_token=job.lease_token)


def _now_and_then(client: OmniqClient, queue: str, count: int) -> dict[str, float]:
    """Job ids with the instant before each was published."""
    published = {}
    for _ in range(count):
        time.sleep(random.uniform(0.05, 0.15))
        at = time.monotonic()
        published[client.publish(queue=queue, payload={})] = at
    return published


def main() -> None:
    told = json.loads(sys.stdin.read())
    json.dump(_now_and_then(_client(told["url"]), told["queue"], told["count"]), sys.stdout)


if __name__ == "__main__":
    main()
