"""Ours and theirs behind one surface, so that a scenario can be told in both directions.

Every call that touches a queue is followed by the invariants of the reference, whoever made it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from penstock.protocols.omniq.client import OmniqClient
from penstock.protocols.omniq.errors import OmniqError
from penstock.protocols.omniq.sync_client import SyncOmniqClient
from tests.protocols.omniq.invariants import check_invariants

__all__ = ["Lease", "Ours", "Peer", "Refused", "Side", "Theirs", "code_of", "in_a_thread"]

_MAIN = Path(__file__).with_name("peer_main.py")


class Lease(NamedTuple):
    """What reserve hands out, told alike by both sides."""

    job_id: str
    payload: str
    lock_until_ms: int
    attempt: int
    gid: str
    lease_token: str


class Refused(Exception):
    """A call was refused with a code of the contract."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Peer:
    """The program beside PyPI omniq, answering one call after the other."""

    def __init__(self, python: Path, url: str, *, cluster: bool = False) -> None:
        command = [python, "-u", _MAIN, *(["--cluster"] if cluster else []), url]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._guard = threading.Lock()
        assert self._read() == {"ready": True}

    def call(self, name: str, /, **args: Any) -> Any:
        """Its answer. Raises `Refused` for a code, AssertionError for what nobody expected."""
        with self._guard:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"call": name, "args": args}) + "\n")
            self._process.stdin.flush()
            answer = self._read()
        if "error" in answer:
            found = re.findall(r"\b[A-Z]{2,}(?:_[A-Z]+)*\b", answer["error"])
            raise Refused(found[-1] if found else f"{answer['type']}: {answer['error']}")
        return answer["ok"]

    def close(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
        self._process.wait()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the peer ended with code {self._process.wait()}"
        return json.loads(line)


class Side:
    """The calls of the contract by their names; ``mirrors`` says if this side keeps them.

    ``lawful`` is switched off where a scenario breaks the laws itself, from outside.
    """

    def __init__(self, raw: Any, *, mirrors: bool) -> None:
        self.raw = raw
        self.mirrors = mirrors
        self.lawful = True

    def publish(self, queue: str, payload: Any, **options: Any) -> str:
        return str(self._do("publish", queue=queue, payload=payload, **options))

    def reserve(self, queue: str, now: int = 0) -> Lease | str | None:
        got = self._do("reserve", queue=queue, now_ms_override=now)
        if got is None or got["status"] == "PAUSED":
            return got and "PAUSED"
        return Lease(*(got[name] for name in Lease._fields))

    def leased(self, queue: str, now: int = 0) -> Lease:
        """Reserve a job that must be there."""
        got = self.reserve(queue, now)
        assert isinstance(got, Lease), got
        return got

    def taken(self, queue: str, now: int = 0) -> str | None:
        """The id of the job that was reserved, ``PAUSED`` or ``None``."""
        got = self.reserve(queue, now)
        return got.job_id if isinstance(got, Lease) else got

    def heartbeat(self, queue: str, job_id: str, token: str, now: int = 0) -> int:
        return int(self._lease_call("heartbeat", queue, job_id, token, now))

    def ack(self, queue: str, job_id: str, token: str, now: int = 0) -> None:
        assert self._lease_call("ack_success", queue, job_id, token, now) is None

    def fail(
        self, queue: str, job_id: str, token: str, now: int = 0, error: str | None = None
    ) -> tuple[str, int | None]:
        status, due = self._lease_call("ack_fail", queue, job_id, token, now, error=error)
        return status, due

    def promote(self, queue: str, now: int = 0) -> int:
        return int(self._do("promote_delayed", queue=queue, now_ms_override=now))

    def reap(self, queue: str, now: int = 0) -> int:
        return int(self._do("reap_expired", queue=queue, now_ms_override=now))

    def pause(self, queue: str) -> str:
        return str(self._do("pause", queue=queue))

    def resume(self, queue: str) -> int:
        return int(self._do("resume", queue=queue))

    def is_paused(self, queue: str) -> bool:
        return bool(self._do("is_paused", queue=queue))

    def retry_failed(self, queue: str, job_id: str, now: int = 0) -> None:
        self._do("retry_failed", queue=queue, job_id=job_id, now_ms_override=now)

    def retry_batch(self, queue: str, job_ids: Sequence[str]) -> list[tuple[str, str | None]]:
        return _items(self._do("retry_failed_batch", queue=queue, job_ids=list(job_ids)))

    def remove(self, queue: str, job_id: str, lane: str) -> None:
        self._do("remove_job", queue=queue, job_id=job_id, lane=lane)

    def remove_batch(
        self, queue: str, lane: str, job_ids: Sequence[str]
    ) -> list[tuple[str, str | None]]:
        return _items(self._do("remove_jobs_batch", queue=queue, lane=lane, job_ids=list(job_ids)))

    def children(self, key: str, expected: int) -> None:
        self._do("childs_init", key=key, expected=expected)

    def child(self, key: str, child_id: str) -> int:
        return int(self._do("child_ack", key=key, child_id=child_id))

    def _lease_call(
        self, name: str, queue: str, job_id: str, token: str, now: int, **more: Any
    ) -> Any:
        return self._do(
            name, queue=queue, job_id=job_id, lease_token=token, now_ms_override=now, **more
        )

    def _do(self, name: str, **args: Any) -> Any:
        try:
            return self._call(name, **args)
        finally:
            if "queue" in args and self.lawful:
                check_invariants(self.raw, args["queue"], mirrors=self.mirrors, shared=True)

    def _call(self, name: str, **args: Any) -> Any:
        raise NotImplementedError


class Theirs(Side):
    """PyPI omniq in its own process."""

    def __init__(self, raw: Any, peer: Peer, *, mirrors: bool) -> None:
        super().__init__(raw, mirrors=mirrors)
        self.peer = peer

    def _call(self, name: str, **args: Any) -> Any:
        return self.peer.call(name, **args)


class Ours(Side):
    """Our client for threads, or the one for asyncio at home in a thread."""

    def __init__(self, raw: Any, client: Any, *, mirrors: bool) -> None:
        super().__init__(raw, mirrors=mirrors)
        self.client = client

    def _call(self, name: str, **args: Any) -> Any:
        try:
            answer = getattr(self.client, name)(**args)
        except OmniqError as error:
            raise Refused(error.code) from error
        if name == "reserve" and answer is not None:
            return {field: getattr(answer, field) for field in answer.__struct_fields__}
        return answer


class _Threaded:
    """An asyncio client whose calls block: the loop lives in a thread."""

    def __init__(self, client: OmniqClient) -> None:
        self._client = client
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            work = getattr(self._client, name)(*args, **options)
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

        return call

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._client.close(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def in_a_thread(client: OmniqClient | SyncOmniqClient) -> Any:
    """The client with calls that block, whichever it is."""
    return _Threaded(client) if isinstance(client, OmniqClient) else client


def code_of(call: Any, *args: Any, **options: Any) -> str | None:
    """The code that a call is refused with, ``None`` when it went through."""
    try:
        call(*args, **options)
    except Refused as refused:
        return refused.code
    return None


def _items(items: Any) -> list[tuple[str, str | None]]:
    """Batch answers as (id, reason)."""
    out = []
    for item in items:
        if isinstance(item, dict):
            out.append((item["job_id"], item["reason"]))
        else:
            job_id, status, reason = item
            assert (status == "OK") == (reason is None)
            out.append((job_id, reason))
    return out
