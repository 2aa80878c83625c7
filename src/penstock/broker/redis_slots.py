"""Where a key lives in a Redis Cluster, and what a node means when it sends us elsewhere. Pure.

A cluster has 16384 slots, each owned by one primary. What stands between the first braces of a
key decides its slot, so all keys of ``{mail}`` live together and one script may touch them.
"""

from __future__ import annotations

from binascii import crc_hqx
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from penstock.broker.redis_port import RedisUnreachable
from penstock.broker.resp import Arg, RedisRefused

__all__ = [
    "Address",
    "Redirect",
    "SlotMap",
    "elsewhere",
    "may_pass",
    "redirect_of",
    "slot_of",
    "slot_of_command",
]

Address: TypeAlias = tuple[str, int]

SLOTS: Final = 16384
_KEYLESS: Final = frozenset(
    ("ACL", "CLUSTER", "CONFIG", "DBSIZE", "INFO", "PING", "SCAN", "SCRIPT", "TIME")
)
_NOBODY: Final = ("", 0)
_SCRIPTS: Final = frozenset(("EVAL", "EVALSHA"))
# Nothing was done, and soon it may be: a slot on its way, an election, a node that just started.
_LATER: Final = frozenset(("CLUSTERDOWN", "LOADING", "MASTERDOWN", "TRYAGAIN", "UNBLOCKED"))


class Redirect(NamedTuple):
    """What to do about a refusal: ``moved`` there, ``ask`` there once, or again ``later``."""

    how: Literal["moved", "ask", "later"]
    address: Address | None = None


class SlotMap:
    """Which primary owns which slot, as far as we have heard."""

    def __init__(self) -> None:
        self._owners: list[Address | None] = [None] * SLOTS
        self.nodes: set[Address] = set()  # replicas too: they know the map as well

    def owner(self, slot: int | None) -> Address | None:
        """The primary of a slot; any primary for a command without a key."""
        if slot is not None:
            return self._owners[slot]
        return next((owner for owner in self._owners if owner is not None), None)

    def moved(self, slot: int, owner: Address) -> None:
        """A node said that another one owns the slot."""
        self._owners[slot] = owner
        self.nodes.add(owner)

    def primaries(self) -> list[Address]:
        """Every primary once."""
        return sorted({owner for owner in self._owners if owner is not None})

    def load(self, reply: Any, asked: Address) -> None:
        """Take over the answer to ``CLUSTER SLOTS`` of the node at ``asked``."""
        owners: list[Address | None] = [None] * SLOTS
        nodes: set[Address] = set()
        for first, last, *members in reply:
            found = [_address(member[0], int(member[1]), asked) for member in members]
            nodes.update(found)
            owners[first : last + 1] = [found[0]] * (last - first + 1)
        self._owners, self.nodes = owners, nodes


def slot_of(key: bytes) -> int:
    """The slot of a key.

    >>> slot_of(b"123456789"), slot_of(b"{mail}:wait") == slot_of(b"{mail}:job:7")
    (12739, True)
    """
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS


def slot_of_command(args: tuple[Arg, ...]) -> int | None:
    """The slot that a command works on; ``None`` where any node will do."""
    if _is_script(args):
        return slot_of(_bytes(args[3])) if int(args[2]) else None
    return None if str(args[0]).upper() in _KEYLESS or len(args) < 2 else slot_of(_bytes(args[1]))


def redirect_of(
    refused: RedisRefused, asked: Address, args: tuple[Arg, ...] = ()
) -> Redirect | None:
    """What a refusal by the node at ``asked`` asks us to do; ``None``: the caller must hear it.

    A script is never sent after a slot that is on its way: it would find some of its keys there
    and leave others behind. It waits until the slot is whole again.
    """
    if refused.kind in ("MOVED", "ASK"):
        host, _, port = refused.text.split(" ")[2].rpartition(":")
        address = (host or asked[0], int(port))
        if refused.kind == "MOVED":
            return Redirect("moved", address)
        return Redirect("later") if _is_script(args) else Redirect("ask", address)
    return Redirect("later") if refused.kind in _LATER else None


def elsewhere(failure: Exception, args: tuple[Arg, ...]) -> bool:
    """Whether another node can serve the command at once."""
    redirect = redirect_of(failure, _NOBODY, args) if isinstance(failure, RedisRefused) else None
    return redirect is not None and redirect.how != "later"


def may_pass(failure: RedisRefused | RedisUnreachable) -> bool:
    """Whether it may go through elsewhere or later; other refusals are meant for the caller."""
    return isinstance(failure, RedisUnreachable) or redirect_of(failure, _NOBODY) is not None


def _is_script(args: tuple[Arg, ...]) -> bool:
    return bool(args) and str(args[0]).upper() in _SCRIPTS


def _address(host: bytes | None, port: int, asked: Address) -> Address:
    """An address as a node gives it; it leaves out its own host while it does not know it."""
    return (host.decode() if host else asked[0], port)


def _bytes(value: Arg) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
