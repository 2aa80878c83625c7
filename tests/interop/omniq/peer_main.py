"""What runs beside PyPI omniq, in its environment: stdlib, redis and omniq are all it may import.

``peer_main.py URL`` answers calls, one JSON line each way. ``peer_main.py URL consume QUEUE …``
runs their consumer in the main thread, as signals need it, and tells what it does, line by line.
"""

import argparse
import dataclasses
import json
import sys
import time

import redis
from omniq.client import OmniqClient
from omniq.monitor import QueueMonitor


def say(**facts):
    sys.stdout.write(json.dumps(facts, default=plain) + "\n")
    sys.stdout.flush()


def plain(value):
    if dataclasses.is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return str(value)


def answer(client, monitor, request):
    name, args = request["call"], request["args"]
    if name == "monotonic":
        return time.monotonic()
    if name.startswith("monitor."):
        return getattr(monitor, name.removeprefix("monitor."))(**args)
    if name == "publish":  # only their inner object takes an override in 1.x
        return client.ops.publish(**args)
    return getattr(client, name)(**args)


def serve(client):
    monitor = QueueMonitor(client)
    say(ready=True)
    for line in sys.stdin:
        try:
            say(ok=answer(client, monitor, json.loads(line)))
        except Exception as error:  # the other side judges it
            say(error=str(error), type=type(error).__name__)


def handler(ctx):
    """Payloads say what to do: ``sleep`` seconds, ``fail`` while attempt <= that."""
    order = ctx.payload if isinstance(ctx.payload, dict) else {}
    about = {"id": ctx.job_id, "gid": ctx.gid, "attempt": ctx.attempt}
    say(kind="started", at=time.monotonic(), payload=ctx.payload, **about)
    if order.get("sleep"):
        time.sleep(order["sleep"])
    if ctx.attempt <= order.get("fail", 0):
        say(kind="failing", at=time.monotonic(), **about)
        raise ValueError("told to fail")
    say(kind="finishing", at=time.monotonic(), **about)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--cluster", action="store_true")
    commands = parser.add_subparsers(dest="command")
    consume = commands.add_parser("consume")
    consume.add_argument("queue")
    consume.add_argument("--no-drain", action="store_true")
    given = parser.parse_args()
    kind = redis.RedisCluster if given.cluster else redis.Redis
    client = OmniqClient(redis=kind.from_url(given.url, decode_responses=True))
    if given.command != "consume":
        serve(client)
        return
    say(kind="ready")
    client.consume(
        queue=given.queue,
        handler=handler,
        drain=not given.no_drain,
        verbose=True,
        logger=lambda text: say(kind="log", text=str(text)),
    )
    say(kind="ended")


main()
