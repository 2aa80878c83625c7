"""Dialling: one nats-py client, connected as the options say, or one clear sentence why not.

nats-py keeps what it is good at: the handshake, authentication, TLS, reconnecting and
replaying subscriptions. Three of its habits are unsafe for us and corrected here:

- it talks in the clear when a server does not ask for TLS, even if we were told to;
- it closes a dead connection politely, which waits for bytes nobody will ever take, so
  a frozen server or a silent network would keep it from reconnecting;
- it gives up for good on an error of the server, such as credentials that ran out.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nats import errors as nats_errors
from nats.aio.client import Client

from penstock.broker.errors import AuthFailed, LinkError, TlsFailed, Unreachable
from penstock.broker.options import NatsOptions
from penstock.core.errors import reason_of

__all__ = ["GuardedClient", "Observer", "connect"]

# The client must never stop to flush on its own: it would do so inside its read loop. The
# link bounds what is pending instead (`Link.room`, `LinkBusy`).
UNBOUNDED = 1 << 40


@dataclass(frozen=True, slots=True)
class Observer:
    """What nats-py calls when the connection changes."""

    disconnected: Callable[[], Awaitable[None]]
    reconnected: Callable[[], Awaitable[None]]
    closed: Callable[[], Awaitable[None]]
    error: Callable[[Exception], Awaitable[None]]


class GuardedClient(Client):
    """nats-py's client, but never in the clear when TLS was asked for, and quick to let go."""

    wants_tls = False
    checked = False  # whether the guard below has run: a renamed hook must not go unnoticed

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection:
            self.checked = True
            if self.wants_tls:
                if not (info.get("tls_required") or info.get("tls_available")):
                    raise nats_errors.SecureConnWantedError
                info["tls_required"] = True
        await super()._process_info(info, initial_connection)

    async def _process_err(self, err_msg: str) -> None:
        if "permissions violation" in err_msg.lower() or not self.is_connected:
            await super()._process_err(err_msg)
        else:
            await self._error_cb(nats_errors.Error(f"nats: {err_msg.strip(chr(39))}"))
            await self._process_op_err(nats_errors.Error(err_msg))

    async def _process_op_err(self, e: Exception) -> None:
        if self.is_connected:
            self.abort()
        await super()._process_op_err(e)

    async def confirm(self, seconds: float) -> None:
        """Wait for the server to answer a PING; nats-py takes fractions but does not say so."""
        await self.flush(seconds)  # type: ignore[arg-type]

    def abort(self) -> None:
        """Drop the socket with whatever it still holds."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    async def give_up(self) -> None:
        """End a connection that may be half made. nats-py would wait for its socket to close,
        which after a failed TLS handshake nobody announces."""
        self.abort()
        self._transport = None
        if self._flush_queue is not None:  # else it failed before it had begun
            await self.close()


async def connect(client: GuardedClient, options: NatsOptions, observer: Observer) -> None:
    """Connect ``client``; from then on it reconnects for ever.

    Raises `Unreachable`, `AuthFailed` or `TlsFailed`, each naming the servers tried.
    """
    faults: list[Exception] = []

    dialling = True

    async def note(error: Exception) -> None:
        if dialling:
            faults.append(error)
            if isinstance(decided := _explained(faults, options), AuthFailed | TlsFailed):
                raise decided from error  # trying again would change nothing
        else:
            await observer.error(error)

    arguments = _arguments(options)
    client.wants_tls = options.wants_tls
    try:
        async with asyncio.timeout(options.connect_timeout.total_seconds() * 2):
            await client.connect(
                **arguments,
                error_cb=note,
                disconnected_cb=observer.disconnected,
                reconnected_cb=observer.reconnected,
                closed_cb=observer.closed,
            )
            await client.confirm(options.connect_timeout.total_seconds())
    except (nats_errors.Error, OSError, TimeoutError, ValueError) as error:
        await client.give_up()
        raise _explained([*faults, error], options) from error
    except BaseException:
        await client.give_up()
        raise
    if options.wants_tls and not client.checked:
        await client.give_up()
        raise TlsFailed("the installed nats-py does not let us insist on TLS")
    client.options["max_reconnect_attempts"] = -1
    dialling = False


def _arguments(options: NatsOptions) -> dict[str, Any]:
    for path in options.named_files():
        try:
            path.read_bytes()
        except OSError as error:
            raise AuthFailed(f"{path} cannot be read: {error.strerror}") from error
    if options.nkey_seed_file:
        _check_seed(Path(options.nkey_seed_file))
    tls: ssl.SSLContext | None = None
    try:
        tls = options.tls_context() if options.wants_tls else None
    except OSError as error:
        raise TlsFailed(f"the TLS files cannot be used: {error}") from error
    return {
        "servers": list(options.servers),
        "name": options.name,
        "user": options.user,
        "password": options.password,
        "token": options.token,
        "user_credentials": options.creds_file,
        "nkeys_seed": options.nkey_seed_file,
        "tls": tls,
        "tls_handshake_first": options.tls_first,
        "inbox_prefix": options.inbox_prefix,
        "connect_timeout": options.connect_timeout.total_seconds(),
        "reconnect_time_wait": options.reconnect_wait.total_seconds(),
        "max_reconnect_attempts": 1,  # for the first connect only; afterwards it never gives up
        "ping_interval": options.ping_interval.total_seconds(),
        "pending_size": UNBOUNDED,
    }


def _check_seed(path: Path) -> None:
    """nats-py reads the seed on its own, and its errors name neither file nor remedy."""
    import nkeys

    try:
        nkeys.from_seed(bytearray(path.read_bytes().strip())).wipe()
    except Exception as error:
        raise AuthFailed(f"{path} holds no nkey seed") from error


def _explained(faults: list[Exception], options: NatsOptions) -> LinkError:
    """The most telling of all faults: identity before encryption before reachability."""
    where = ", ".join(urlsplit(server).netloc or server for server in options.servers)
    for fault in faults:
        text = str(fault).lower()
        if isinstance(fault, nats_errors.AuthorizationError) or "authorization" in text:
            return AuthFailed(f"the NATS server at {where} refused our credentials")
        if "authentication" in text:
            return AuthFailed(f"the NATS server at {where} refused our credentials: {fault}")
    for fault in faults:
        if isinstance(fault, nats_errors.SecureConnWantedError):
            return TlsFailed(f"the NATS server at {where} does not offer TLS")
        if isinstance(fault, ssl.SSLError):
            reason = getattr(fault, "verify_message", "") or fault.reason or str(fault)
            return TlsFailed(f"TLS with the NATS server at {where} failed: {reason}")
    told = [fault for fault in faults if not isinstance(fault, nats_errors.NoServersError)]
    last = told[-1] if told else None
    if isinstance(last, ValueError | nats_errors.Error) and not isinstance(last, TimeoutError):
        return LinkError(f"the NATS server at {where} turned us away: {last}")
    why = f": {reason_of(last)}" if last is not None else ""
    return Unreachable(f"no NATS server answers at {where}{why}")
