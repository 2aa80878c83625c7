"""A client for job servers elsewhere: enqueue, look, cancel, wait for results.

Every job gets its id here, so that a request whose answer was lost can be sent again: the
server then says that the id is taken, which is to say that the first one arrived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from penstock.core.errors import TaskFailed, Waited
from penstock.core.ids import uuid7
from penstock.protocols.ojs.remote.errors import OjsError
from penstock.protocols.ojs.remote.transport import Transport
from penstock.protocols.ojs.remote.views import RemoteJob

__all__ = ["OjsHttpClient", "job_request"]

_MAX_WAIT_S: Final = 20.0

T = TypeVar("T")


class _Job(Struct):
    job: RemoteJob


class _Jobs(Struct):
    jobs: list[RemoteJob]


class _Result(Struct):
    state: str = ""
    result: Any = None


class OjsHttpClient:
    """``async with OjsHttpClient("http://127.0.0.1:8080") as client: …``"""

    def __init__(
        self, url: str, *, token: str = "", tenant: str = "", timeout: float = 30.0
    ) -> None:
        self.url = url
        self.transport = Transport(url, token=token, tenant=tenant, timeout=timeout)

    async def __aenter__(self) -> OjsHttpClient:
        await self.transport.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.transport.__aexit__(kind, error, trace)

    async def enqueue(
        self,
        job_type: str,
        args: Sequence[Any] = (),
        *,
        id: str = "",
        meta: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> RemoteJob:
        """Put a job in; it is stored when this returns. ``options`` as the specification names
        them (``queue``, ``priority``, ``scheduled_at``, ``retry``, ``unique``, …)."""
        request = job_request(job_type, args, id=id, meta=meta, **options)
        try:
            answer = await self.transport.ask("POST", "/ojs/v1/jobs", request)
        except OjsError as error:
            if id or error.details.get("existing_job_id") != request["id"]:
                raise
            return await self.job(request["id"])  # the first try arrived, its answer did not
        return _read(answer, _Job).job

    async def enqueue_batch(self, jobs: Sequence[Mapping[str, Any]]) -> list[RemoteJob]:
        """Put many jobs in, all or none. Each is a request as `job_request` makes it."""
        try:
            answer = await self.transport.ask("POST", "/ojs/v1/jobs/batch", {"jobs": jobs})
        except OjsError as error:
            ids = [str(job.get("id", "")) for job in jobs]
            if error.details.get("existing_job_id") not in ids or not all(ids):
                raise
            return [await self.job(one) for one in ids]
        return _read(answer, _Jobs).jobs

    async def job(self, job_id: str) -> RemoteJob:
        """The job as it is now. Raises `OjsError` with status 404 if there is none."""
        return _read(await self.transport.ask("GET", f"/ojs/v1/jobs/{job_id}"), _Job).job

    async def cancel(self, job_id: str, reason: str = "") -> RemoteJob:
        """Stop a job that is not over. Raises `OjsError` with status 409 if it is."""
        body = {"reason": reason} if reason else {}
        answer = await self.transport.ask(
            "POST", f"/ojs/v1/jobs/{job_id}/cancel", body, again=False
        )
        return _read(answer, _Job).job

    async def result(self, job_id: str, timeout: timedelta | float = 30.0) -> Any:
        """What the job returned, waiting for it. Raises `TaskFailed`, or `Waited` when it takes
        longer."""
        left = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        while True:
            step = min(left, _MAX_WAIT_S)
            query = {"wait": "true", "timeout": f"{step:g}"}
            try:
                answer = await self.transport.ask(
                    "GET", f"/ojs/v1/jobs/{job_id}/result", query=query, timeout=step + 10
                )
            except OjsError as error:
                left -= step
                if error.status != 408:
                    raise
                if left <= 0:
                    raise Waited(f"job {job_id} is not over yet") from error
                continue
            found = _read(answer, _Result)
            if found.state == "completed":
                return found.result
            raise await self._failed(job_id)

    async def _failed(self, job_id: str) -> TaskFailed:
        job = await self.job(job_id)
        error = job.error or {}
        message = str(error.get("message") or f"the job was {job.state}")
        return TaskFailed(job.type, job_id, 500, message, error or None)


def job_request(
    job_type: str,
    args: Sequence[Any] = (),
    *,
    id: str = "",
    meta: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """A job as the wire wants it. Times and lengths may be given as Python has them."""
    request: dict[str, Any] = {"type": job_type, "args": list(args), "id": id or uuid7()}
    if meta:
        request["meta"] = dict(meta)
    if options:
        request["options"] = {name: _on_the_wire(value) for name, value in options.items()}
    return request


def _on_the_wire(value: Any) -> Any:
    match value:
        case datetime():
            return value.astimezone().isoformat()
        case timedelta():
            return f"+PT{value.total_seconds():g}S"
    return value


def _read(answer: bytes, kind: type[T]) -> T:
    return msgspec.json.decode(answer, type=kind)
