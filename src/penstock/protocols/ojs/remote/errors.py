"""What a server said when it said no, and what is known when it said nothing."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from penstock.core.errors import PenstockError

__all__ = ["ErrorBody", "OjsError", "ServerAway"]


class ErrorBody(Struct, frozen=True):
    """The ``error`` member of an answer."""

    code: str = ""
    message: str = ""
    retryable: bool = False
    details: dict[str, Any] = {}
    hint: str = ""
    request_id: str = ""


class OjsError(PenstockError):
    """The server refused. ``wire_code`` is its code; ``details`` are its facts."""

    def __init__(self, status: int, error: ErrorBody) -> None:
        super().__init__(
            error.message or f"the server answered {status}",
            remedy=error.hint,
            code=f"ojs.{error.code or status}",
        )
        self.status = status
        self.wire_code = error.code
        self.retryable = error.retryable
        self.details = error.details
        self.request_id = error.request_id


class ServerAway(PenstockError):
    """No answer came. What was asked for may or may not have happened."""

    code = "ojs.away"
    remedy = "check the address of the server and that it runs (GET /ojs/v1/health)"
