"""A Redis Cluster for threads: what `redis_cluster` is for asyncio, with the same promises."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from penstock.broker.redis_port import RedisClosed, RedisLost, RedisTarget, RedisUnreachable
from penstock.broker.redis_slots import (
    Address,
    SlotMap,
    elsewhere,
    may_pass,
    redirect_of,
    slot_of_command,
)
from penstock.broker.redis_sync import SyncRedisLink
from penstock.broker.resp import Arg, RedisRefused, Reply
from penstock.core.errors import PenstockError

__all__ = ["SyncRedisClusterLink"]

_PATIENCE: Final = 10.0
_NODE_SECONDS: Final = 1.0
_FREE_HOPS: Final = 3  # redirections at once; nodes that disagree need a moment
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5


class SyncRedisClusterLink:
    """``SyncRedisClusterLink(url)`` with the URL of any node; any thread may use it."""

    def __init__(self, url: str, *, timeout: float | None = 10.0, max_idle: int = 16) -> None:
        self._seed = RedisTarget.from_url(url)
        self._timeout = timeout
        self._patience = timeout or _PATIENCE
        self._max_idle = max_idle
        self._map = SlotMap()
        self._links: dict[Address, SyncRedisLink] = {}
        self._guard = threading.Lock()
        self._closed = False

    def execute(self, *args: Arg) -> Reply:
        """The answer to one command. Raises `RedisRefused`, `RedisLost` or `RedisUnreachable`."""
        slot = slot_of_command(args)
        owner: Address | None = None
        asking: Address | None = None
        failure: PenstockError | None = None
        deadline = time.monotonic() + self._patience
        pause, hops = _FIRST_PAUSE, 0
        while True:
            try:
                if failure is not None:
                    asking = self._correct(args, slot, owner, failure)
                elif self._map.owner(slot) is None:
                    self._learn()
                owner = asking or self._map.owner(slot)
                if owner is None:
                    raise RedisUnreachable(f"no node of the Redis cluster owns slot {slot}")
                return self._ask(owner, args, once=asking is not None)
            except (RedisRefused, RedisUnreachable) as error:
                if not may_pass(error):
                    raise
                failure = error
            if hops < _FREE_HOPS and elsewhere(failure, args):
                hops += 1
                continue
            if time.monotonic() > deadline:
                raise RedisUnreachable(
                    f"no node served the command within {self._patience:g} s: {failure}"
                ) from failure
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause, hops = min(pause * 2, _LONGEST_PAUSE), 0

    def pipeline(self, commands: Sequence[tuple[Arg, ...]]) -> list[Reply]:
        """The answers to many commands, one after the other: they may belong to several nodes."""
        replies: list[Reply] = []
        for command in commands:
            try:
                replies.append(self.execute(*command))
            except RedisRefused as refused:
                replies.append(refused)
        return replies

    def scan(self, pattern: str) -> Iterator[bytes]:
        """All keys that match, on every primary; a key may come twice."""
        if not self._map.primaries():
            self._learn()
        for primary in self._map.primaries():
            yield from self._link(primary).scan(pattern)

    def close(self) -> None:
        """Close the idle connections; those at work close when their command ends."""
        with self._guard:
            self._closed = True
            links, self._links = self._links, {}
        for link in links.values():
            link.close()

    def _ask(self, owner: Address, args: tuple[Arg, ...], *, once: bool) -> Reply:
        """One node's answer; ``once`` for a slot that is on its way to it."""
        link = self._link(owner)
        try:
            if not once:
                return link.execute(*args)
            reply = link.pipeline([("ASKING",), args])[1]
        except RedisClosed as error:
            if self._closed:
                raise
            raise RedisUnreachable("the node left the Redis cluster") from error
        if isinstance(reply, RedisRefused):
            raise reply
        return reply

    def _correct(
        self,
        args: tuple[Arg, ...],
        slot: int | None,
        owner: Address | None,
        failure: PenstockError,
    ) -> Address | None:
        """Put the map right by what a failure says; the node to be asked once, if any."""
        if owner is not None and isinstance(failure, RedisRefused):
            redirect = redirect_of(failure, owner, args)
            if redirect is not None and redirect.how == "ask":
                return redirect.address
            if redirect is not None and redirect.address is not None and slot is not None:
                with self._guard:
                    self._map.moved(slot, redirect.address)
                return None
        self._learn()
        return None

    def _learn(self) -> None:
        """Ask nodes for the map until one answers; what is no node any more is let go."""
        if self._closed:
            raise RedisClosed("the Redis link was closed")
        known = list(self._map.nodes)
        random.shuffle(known)
        failure: Exception | None = None
        for address in [*known, (self._seed.host, self._seed.port)]:
            scout = SyncRedisLink(self._at(address), timeout=_NODE_SECONDS)
            try:
                slots = scout.execute("CLUSTER", "SLOTS")
            except (RedisLost, RedisUnreachable) as error:
                failure = error
            except RedisRefused as refused:
                if redirect_of(refused, address) is None:
                    raise
                failure = refused
            else:
                with self._guard:
                    self._map.load(slots, address)
                    gone = [self._links.pop(one) for one in self._links.keys() - self._map.nodes]
                for link in gone:
                    link.close()
                return
            finally:
                scout.close()
        raise RedisUnreachable(f"no node of the Redis cluster answers: {failure}")

    def _link(self, address: Address) -> SyncRedisLink:
        link = self._links.get(address)
        if link is not None:
            return link
        with self._guard:
            if self._closed:
                raise RedisClosed("the Redis link was closed")
            return self._links.setdefault(
                address,
                SyncRedisLink(
                    self._at(address),
                    timeout=self._timeout,
                    connect_timeout=min(_NODE_SECONDS, self._patience),
                    max_idle=self._max_idle,
                ),
            )

    def _at(self, address: Address) -> RedisTarget:
        return replace(self._seed, host=address[0], port=address[1], path=None)
