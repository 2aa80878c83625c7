"""A Redis Cluster behind the same door as a single Redis: a lean link for each node it needs.

A command goes to the node that owns the slot of its key. A node that sends us elsewhere is
believed (MOVED, ASK), what may soon go through is tried again (an election, a slot on its way),
and a node that is gone is looked for among the others; all within ``timeout``. Tried again is
only what certainly had no effect: a command that was sent when the connection broke
raises `RedisLost`, as with a single Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Final

from penstock.broker.redis_link import RedisLink, unheard
from penstock.broker.redis_port import RedisClosed, RedisLost, RedisTarget, RedisUnreachable
from penstock.broker.redis_slots import (
    Address,
    SlotMap,
    elsewhere,
    may_pass,
    redirect_of,
    slot_of_command,
)
from penstock.broker.resp import Arg, Push, RedisRefused, Reply
from penstock.core.errors import PenstockError

__all__ = ["RedisClusterLink"]

_PATIENCE: Final = 10.0  # for a new owner, where the caller waits for answers without end
_NODE_SECONDS: Final = 1.0  # for one node, before we ask the others
_FREE_HOPS: Final = 3  # redirections at once; nodes that disagree need a moment
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5


class RedisClusterLink:
    """``RedisClusterLink(url)`` with the URL of any node; connects at the first command.

    ``timeout`` bounds the wait for a node that can serve a command, and for its answer;
    ``None`` for a link that is used for blocking commands. ``greeting`` and ``told`` are those of
    the link to each node.
    """

    def __init__(
        self,
        url: str | RedisTarget,
        *,
        timeout: float | None = 10.0,
        max_in_flight: int = 4096,
        greeting: Sequence[tuple[Arg, ...]] = (),
        told: Callable[[Push | None], None] = unheard,
    ) -> None:
        self._seed = url if isinstance(url, RedisTarget) else RedisTarget.from_url(url)
        self._timeout = timeout
        self._patience = timeout or _PATIENCE
        self._max_in_flight = max_in_flight
        self._greeting = greeting
        self._told = told
        self._map = SlotMap()
        self._links: dict[Address, RedisLink] = {}
        self._learning: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def reconnects(self) -> int:
        """How often connections to nodes broke."""
        return sum(link.reconnects for link in self._links.values())

    async def execute(self, *args: Arg) -> Reply:
        """The answer to one command. Raises `RedisRefused`, `RedisLost` or `RedisUnreachable`."""
        slot = slot_of_command(args)
        owner = self._map.owner(slot)
        if owner is None:
            return await self._insist(args, slot, None, None)
        try:
            return await self._ask(owner, args)
        except (RedisRefused, RedisUnreachable) as failure:
            return await self._insist(args, slot, owner, failure)

    async def pipeline(self, commands: Sequence[tuple[Arg, ...]]) -> list[Reply]:
        """The answers to many commands sent at once; refusals are members of the list."""

        async def answer(command: tuple[Arg, ...]) -> Reply:
            try:
                return await self.execute(*command)
            except RedisRefused as refused:
                return refused

        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(answer(command)) for command in commands]
        return [task.result() for task in asked]

    async def scan(self, pattern: str) -> AsyncIterator[bytes]:
        """All keys that match, on every primary; a key may come twice."""
        if not self._map.primaries():
            await self._learn()
        for primary in self._map.primaries():
            async for key in self._link(primary).scan(pattern):
                yield key

    async def aclose(self) -> None:
        """Close all connections; commands without an answer raise `RedisClosed`."""
        self._closed = True
        learning, self._learning = self._learning, None
        if learning is not None:
            learning.cancel()
            await asyncio.wait([learning])
        links, self._links = self._links, {}
        for link in links.values():
            await link.aclose()

    # -- finding the owner ----------------------------------------------------------------

    async def _insist(
        self,
        args: tuple[Arg, ...],
        slot: int | None,
        owner: Address | None,
        failure: PenstockError | None,
    ) -> Reply:
        """Follow redirections and wait out elections; every failure so far had no effect."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        pause, hops = _FIRST_PAUSE, 0
        while True:
            try:
                asking = await self._correct(args, slot, owner, failure)
                owner = asking or self._map.owner(slot)
                if owner is None:
                    raise RedisUnreachable(f"no node of the Redis cluster owns slot {slot}")
                return await self._ask(owner, args, once=asking is not None)
            except (RedisRefused, RedisUnreachable) as error:
                if not may_pass(error):
                    raise
                failure = error
            if hops < _FREE_HOPS and elsewhere(failure, args):
                hops += 1
                continue
            if loop.time() > deadline:
                raise RedisUnreachable(
                    f"no node served the command within {self._patience:g} s: {failure}"
                ) from failure
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause, hops = min(pause * 2, _LONGEST_PAUSE), 0

    async def _correct(
        self,
        args: tuple[Arg, ...],
        slot: int | None,
        owner: Address | None,
        failure: PenstockError | None,
    ) -> Address | None:
        """Put the map right by what a failure says; the node to be asked once, if any."""
        if owner is not None and isinstance(failure, RedisRefused):
            redirect = redirect_of(failure, owner, args)
            if redirect is None:
                raise failure
            if redirect.how == "ask":
                return redirect.address
            if redirect.how == "moved" and slot is not None and redirect.address is not None:
                self._map.moved(slot, redirect.address)
                self._learn_soon()
                return None
        await self._learn()
        return None

    async def _ask(self, owner: Address, args: tuple[Arg, ...], *, once: bool = False) -> Reply:
        """One node's answer; ``once`` for a slot that is on its way to it."""
        link = self._link(owner)
        try:
            if not once:
                return await link.execute(*args)
            reply = (await link.pipeline([("ASKING",), args]))[1]
        except RedisLost:
            self._learn_soon()  # for the next command: this one may have taken effect
            raise
        except RedisClosed as error:
            if self._closed:
                raise
            raise RedisUnreachable("the node left the Redis cluster") from error
        if isinstance(reply, RedisRefused):
            raise reply
        return reply

    def _link(self, address: Address) -> RedisLink:
        link = self._links.get(address)
        if link is None:
            if self._closed:
                raise RedisClosed("the Redis link was closed")
            link = self._links[address] = RedisLink(
                self._at(address),
                timeout=self._timeout,
                connect_timeout=min(_NODE_SECONDS, self._patience),
                max_in_flight=self._max_in_flight,
                greeting=self._greeting,
                told=self._told,
            )
        return link

    # -- learning the map -----------------------------------------------------------------

    def _learn_soon(self) -> asyncio.Task[None]:
        """One look at the cluster for all who need it now."""
        if self._closed:
            raise RedisClosed("the Redis link was closed")
        if self._learning is None or self._learning.done():
            self._learning = asyncio.create_task(self._look(), name="redis-cluster:learn")
            self._learning.add_done_callback(_hear)
        return self._learning

    async def _learn(self) -> None:
        await asyncio.shield(self._learn_soon())

    async def _look(self) -> None:
        """Ask nodes for the map until one answers; what is no node any more is let go."""
        known = list(self._map.nodes)
        random.shuffle(known)
        failure: Exception | None = None
        for address in [*known, (self._seed.host, self._seed.port)]:
            scout = RedisLink(self._at(address), timeout=_NODE_SECONDS)
            try:
                self._map.load(await scout.execute("CLUSTER", "SLOTS"), address)
                break
            except (RedisLost, RedisUnreachable) as error:
                failure = error
            except RedisRefused as refused:
                if redirect_of(refused, address) is None:
                    raise
                failure = refused
            finally:
                await scout.aclose()
        else:
            raise RedisUnreachable(f"no node of the Redis cluster answers: {failure}")
        for gone in self._links.keys() - self._map.nodes:
            if self._links[gone].idle:  # who waits for an answer of a leaving node may hear it
                await self._links.pop(gone).aclose()

    def _at(self, address: Address) -> RedisTarget:
        return replace(self._seed, host=address[0], port=address[1], path=None)


def _hear(learning: asyncio.Task[None]) -> None:
    """A look that nobody waits for may fail: the next command looks again."""
    with contextlib.suppress(asyncio.CancelledError):
        learning.exception()
