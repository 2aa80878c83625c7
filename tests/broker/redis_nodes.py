"""A Redis Cluster on loopback: three primaries, replicas if wanted, slots that can be moved."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import redis as redis_py

from penstock.broker.redis_embedded import EmbeddedRedis

__all__ = ["RedisNodes", "wait_for"]

SLOTS = 16384
_BUS = 10_000  # nodes talk to each other on their port + this
_OPTIONS = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1500")


def wait_for(holds: Callable[[], object], within: float = 30.0, *, what: str) -> None:
    """Return when it holds; AssertionError with ``what`` after ``within`` seconds."""
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not come true within {within:g} s"
        time.sleep(0.02)


class RedisNodes:
    """``with RedisNodes() as nodes: OmniqClient(nodes.url)``; every write is on disk (AOF always).

    ``replicas`` of each primary follow it and take its place when it is gone.
    """

    def __init__(self, *, replicas: int = 0) -> None:
        self._replicas = replicas
        self.primaries: list[EmbeddedRedis] = []
        self.replicas: list[EmbeddedRedis] = []

    @property
    def url(self) -> str:
        """Any node will do."""
        return self.primaries[0].url

    @property
    def servers(self) -> Sequence[EmbeddedRedis]:
        return [*self.primaries, *self.replicas]

    def __enter__(self) -> Self:
        try:
            self.primaries = [_started() for _ in range(3)]
            self.replicas = [_started() for _ in range(3 * self._replicas)]
            self._join()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for server in self.servers:
            server.stop()

    def all_keys(self) -> set[str]:
        """Every key of the cluster."""
        found: set[str] = set()
        for server in self.primaries:
            with raw(server) as node:
                found |= set(node.scan_iter(match="*", count=1000))
        return found

    def owner(self, key: str) -> EmbeddedRedis:
        """The primary that serves this key now, whichever it was at the start."""
        slot = _slot(key)
        for server in self.servers:
            with contextlib.suppress(redis_py.RedisError):
                return self._by_port(self._owner_for(server, slot))
        raise AssertionError(f"nobody serves slot {slot}")

    def move_slot(
        self, key: str, target: EmbeddedRedis, *, halfway: Callable[[], Any] = lambda: None
    ) -> None:
        """Hand the slot of ``key`` over, as resharding does; ``halfway`` while it is on its way."""
        slot, source = _slot(key), self.owner(key)
        with raw(source) as giving, raw(target) as taking:
            taking.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", node_id(giving))
            giving.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", node_id(taking))
            halfway()
            while names := giving.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
                giving.execute_command(
                    "MIGRATE", "127.0.0.1", target.port, "", 0, 10_000, "KEYS", *names
                )
            taker = node_id(taking)
        for server in [target, source, *self.primaries]:
            with contextlib.suppress(redis_py.ResponseError), raw(server) as node:
                node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", taker)
        for server in self.servers:
            wait_for(
                lambda server=server: self._owner_for(server, slot) == target.port, what="news"
            )

    def replica_of(self, primary: EmbeddedRedis) -> EmbeddedRedis:
        """The first replica that was given to a primary at the start."""
        return self.replicas[self.primaries.index(primary)]

    def hand_over(self, primary: EmbeddedRedis) -> EmbeddedRedis:
        """Let a replica take the place of its primary in good order; the new primary."""
        pairs = list(zip(self.primaries, self.replicas, strict=False))
        other = next((b if a is primary else a) for a, b in pairs if primary in (a, b))

        def took_over() -> bool:
            with raw(other) as node:
                if node.info("replication")["role"] == "master":
                    return True
                with contextlib.suppress(redis_py.ResponseError):  # one is under way already
                    node.execute_command("CLUSTER", "FAILOVER")
                return False

        wait_for(took_over, what="the replica's promotion")
        return other

    def _join(self) -> None:
        first = self.primaries[0]
        for number, server in enumerate(self.primaries):
            share = range(number * SLOTS // 3, (number + 1) * SLOTS // 3)
            with raw(server) as node:
                node.execute_command("CLUSTER", "ADDSLOTS", *share)
                node.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for server in self.servers[1:]:
            with raw(server) as node:
                node.execute_command("CLUSTER", "MEET", "127.0.0.1", first.port)
        for server in self.servers:
            wait_for(lambda server=server: self._knows_all(server), what="the cluster")
        for number, server in enumerate(self.replicas):
            with raw(server) as node, raw(self.primaries[number % 3]) as primary:
                node.execute_command("CLUSTER", "REPLICATE", node_id(primary))
        for server in self.replicas:
            wait_for(lambda server=server: _follows(server), what="replication")

    @staticmethod
    def _owner_for(server: EmbeddedRedis, slot: int) -> int:
        """The port of a slot's owner as one node sees it."""
        with raw(server) as node:
            for first, last, primary, *_ in node.execute_command("CLUSTER SLOTS"):
                if first <= slot <= last:
                    return int(primary[1])
        return 0

    def _knows_all(self, server: EmbeddedRedis) -> bool:
        with raw(server) as node:
            about = node.execute_command("CLUSTER INFO")
        known = int(about["cluster_known_nodes"])
        return about["cluster_state"] == "ok" and known == len(self.servers)

    def _by_port(self, port: int) -> EmbeddedRedis:
        return next(server for server in self.servers if server.port == port)


@contextlib.contextmanager
def raw(server: EmbeddedRedis) -> Iterator[Any]:
    """One node's own view, through somebody else's client."""
    with redis_py.Redis(port=server.port, decode_responses=True, socket_timeout=10) as node:
        yield node


def node_id(node: Any) -> str:
    return str(node.execute_command("CLUSTER", "MYID"))


def _follows(server: EmbeddedRedis) -> bool:
    with raw(server) as node:
        return bool(node.info("replication").get("master_link_status") == "up")


def _slot(key: str) -> int:
    from redis.crc import key_slot

    return int(key_slot(key.encode()))


def _started() -> EmbeddedRedis:
    """A node on a port whose bus port is free and possible too."""
    while True:
        with socket.socket() as probe, socket.socket() as bus:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            if port + _BUS > 65_535:
                port = 20_000 + port % 20_000
            with contextlib.suppress(OSError):
                bus.bind(("127.0.0.1", port + _BUS))
                break
    return EmbeddedRedis(aof="always", port=port, options=_OPTIONS).start()
