"""Where work lives during one measurement: a fresh server in a temporary folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from bench.kit.model import Place

__all__ = ["Server", "fresh"]


class Server(NamedTuple):
    url: str
    pid: int | None


@contextmanager
def fresh(place: Place) -> Iterator[Server]:
    """A server of that kind, with its defaults, for one contender; gone afterwards."""
    if place == "nats":
        from penstock.broker.embedded import EmbeddedNats

        with EmbeddedNats() as nats:
            yield Server(nats.url, nats.pid)
    elif place == "redis":
        from penstock.broker.redis_embedded import EmbeddedRedis

        with EmbeddedRedis() as redis:
            yield Server(redis.url, redis.pid)
    else:
        yield Server("", None)
