"""One request, as handlers see it: its body checked, its caller known, its answer one call away."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw

from penstock.core.ids import uuid7
from penstock.protocols.ojs.fields import NO_FIELDS, Fields, object_of
from penstock.protocols.ojs.http.replies import VERSION, accepted_media, refused, reply
from penstock.protocols.ojs.names import CRON_NAME, JOB_ID, QUEUE_NAME
from penstock.protocols.ojs.refusal import Refusal, Refused, invalid, not_found
from penstock.web.auth import Role
from penstock.web.message import Request, Response

if TYPE_CHECKING:
    from penstock.protocols.ojs.engine import Engine
    from penstock.protocols.ojs.http.desk import Desk

__all__ = ["Exchange", "opened"]

TENANT: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:-]{0,127}", re.ASCII)
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")
_MAX_ID_CHARS: Final = 256
_MEDIA: Final = frozenset(("application/openjobspec+json", "application/json"))


@dataclass(slots=True, eq=False)
class Exchange:
    request: Request
    desk: Desk
    engine: Engine
    request_id: str
    media: str
    tenant: str = ""
    role: Role | None = None
    headers: list[tuple[str, str]] = field(default_factory=list)

    # What was asked -------------------------------------------------------------------

    def body(self) -> dict[str, Raw]:
        """The members of the body, which must be there. Raises `Refused`."""
        self._check_type()
        return object_of(self.request.body)

    def body_or_nothing(self) -> dict[str, Raw]:
        """The members of a body that may be left out."""
        return self.body() if self.request.body.strip() else NO_FIELDS

    def fields(self) -> Fields:
        return Fields(self.body())

    def fields_or_nothing(self) -> Fields:
        return Fields(self.body_or_nothing())

    def job_id(self) -> str:
        """The job in the path. What cannot be an id is not looked for."""
        return self._named("id", "job", JOB_ID)

    async def own_job(self) -> str:
        """The job in the path, which must be the tenant's. Raises `Refused`."""
        job_id = self.job_id()
        if self.tenant:
            found = await self.engine.info(job_id, tenant=self.tenant)
            if isinstance(found, Refusal):
                raise Refused(found)
        return job_id

    def workflow_id(self) -> str:
        return self._named("id", "workflow", JOB_ID)

    def queue(self) -> str:
        name = self.request.params["name"]
        if not QUEUE_NAME.fullmatch(name):
            raise invalid("queue", f"{name[:128]!r} is not a queue name")
        return name

    def cron(self) -> str:
        return self._named("name", "cron", CRON_NAME)

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number in the query string."""
        text = self.request.query(name)
        if not text:
            return default
        if not re.fullmatch(r"-?\d{1,15}", text, re.ASCII) or not low <= int(text) <= high:
            raise invalid(name, f"must be a whole number from {low} to {high}")
        return int(text)

    def listed(self, name: str) -> tuple[str, ...]:
        """A comma-separated list in the query string."""
        return tuple(part.strip() for part in self.request.query(name).split(",") if part.strip())

    # What is answered -----------------------------------------------------------------

    def ok(self, content: Any, status: int = 200, **headers: str) -> Response:
        """``headers`` are written with underscores for dashes."""
        named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
        return reply(
            status,
            content,
            request_id=self.request_id,
            media=self.media,
            headers=(*self.headers, *named),
        )

    def nothing(self) -> Response:
        """Done, and nothing to say."""
        return Response(
            204, b"", (("ojs-version", VERSION), ("x-request-id", self.request_id), *self.headers)
        )

    def refuse(self, refusal: Refusal) -> Response:
        return refused(
            refusal, request_id=self.request_id, media=self.media, headers=tuple(self.headers)
        )

    def _named(self, param: str, kind: str, pattern: re.Pattern[str]) -> str:
        name = self.request.params[param]
        if not pattern.fullmatch(name):
            raise Refused(not_found(kind, name))
        return name

    def _check_type(self) -> None:
        given = self.request.header("content-type")
        if given and given.partition(";")[0].strip().lower() not in _MEDIA:
            raise Refused(
                Refusal(
                    "invalid_request",
                    f"Content-Type {given[:100]!r} is not known here; send application/json",
                    {"field": "Content-Type"},
                )
            )


def opened(request: Request, desk: Desk) -> Exchange:
    """Begin to answer ``request``: whatever happens next, it has an id and a media type."""
    given = _UNPRINTABLE.sub("", request.header("x-request-id"))[:_MAX_ID_CHARS]
    return Exchange(
        request=request,
        desk=desk,
        engine=desk.engine,
        request_id=given or f"req_{uuid7()}",
        media=accepted_media(request.header("accept")),
    )
