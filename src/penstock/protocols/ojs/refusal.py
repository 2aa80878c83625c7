"""Refusals: why an operation did not happen, in the words of the Open Job Spec.

A `Refusal` is a value, because a late ack or a duplicate is an everyday answer and not a
surprise. Whoever reads input raises it as `Refused`; the HTTP face turns either into the
same body. Every code has one status, and says whether trying again can help.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from msgspec import Struct

from penstock.core.errors import PenstockError

__all__ = ["CODES", "CodeMeaning", "Refusal", "Refused", "invalid", "not_found", "wrong_state"]


class CodeMeaning(NamedTuple):
    status: int
    retryable: bool
    hint: str


CODES: Final[Mapping[str, CodeMeaning]] = {
    "invalid_payload": CodeMeaning(400, False, "Send one JSON object, UTF-8, no BOM."),
    "invalid_request": CodeMeaning(400, False, "Correct the field named in details.field."),
    "schema_validation": CodeMeaning(400, False, "Make args fit the schema of this job type."),
    "validation_error": CodeMeaning(422, False, "Correct the field named in the message."),
    "unauthenticated": CodeMeaning(401, False, "Send Authorization: Bearer with a valid token."),
    "permission_denied": CodeMeaning(403, False, "Use a token with a higher role."),
    "tenant_access_denied": CodeMeaning(403, False, "Send the tenant that owns the job."),
    "not_found": CodeMeaning(404, False, "Check the id; finished jobs go after their retention."),
    "method_not_allowed": CodeMeaning(405, False, "Use one of the methods in the Allow header."),
    "conflict": CodeMeaning(409, False, "Read the job again: its state has moved on."),
    "duplicate": CodeMeaning(409, False, "Use the job named in details.existing_job_id."),
    "result_pruned": CodeMeaning(410, False, "Ask earlier, or enqueue with a longer result_ttl."),
    "not_finished": CodeMeaning(408, True, "Ask again: the job is still under way."),
    "envelope_too_large": CodeMeaning(413, False, "Store large data elsewhere; send a reference."),
    "batch_too_large": CodeMeaning(413, False, "Split the batch."),
    "queue_paused": CodeMeaning(422, True, "Resume the queue."),
    "unsupported": CodeMeaning(422, False, "See /ojs/manifest for what is supported."),
    "job_type_not_allowed": CodeMeaning(422, False, "See allowed_job_types of the queue."),
    "rate_limited": CodeMeaning(429, True, "Wait as long as Retry-After says."),
    "QUEUE_FULL": CodeMeaning(429, True, "Wait until workers have drained the queue."),
    "TENANT_LIMIT_EXCEEDED": CodeMeaning(429, True, "Wait, or raise the limit of the tenant."),
    "backend_error": CodeMeaning(500, True, "Try again; the server log has the cause."),
    "backend_unavailable": CodeMeaning(503, True, "Try again shortly: the store is away."),
    "backend_timeout": CodeMeaning(504, True, "Read before trying again: it may have happened."),
}


class Refusal(Struct, frozen=True):
    """Why not: a code of `CODES`, a sentence with the facts, and details for programs."""

    code: str
    message: str
    details: dict[str, Any] = {}
    retry_after_s: int | None = None

    @property
    def status(self) -> int:
        return CODES[self.code].status

    def body(self, request_id: str = "") -> dict[str, Any]:
        """The JSON error object of the HTTP binding."""
        meaning = CODES[self.code]
        docs = f"https://openjobspec.org/errors/{self.code.lower()}"
        error: dict[str, Any] = {
            "code": self.code,
            "message": self.message,
            "retryable": meaning.retryable,
            "hint": meaning.hint,
            "docs_url": docs,
            "doc_url": docs,
            "request_id": request_id,
        }
        if self.code == "validation_error":
            error["type"] = "validation_error"
        if self.details:
            error["details"] = self.details
        return {"error": error}


class Refused(PenstockError):
    """A refusal on its way up from a reader of input; nothing has changed."""

    def __init__(self, refusal: Refusal) -> None:
        hint = CODES[refusal.code].hint
        super().__init__(refusal.message, remedy=hint, code=f"ojs.{refusal.code}")
        self.refusal = refusal


def invalid(field: str, problem: str, *, code: str = "invalid_request", **details: Any) -> Refused:
    """The error for a ``field`` (a dotted path) that does not fit."""
    return Refused(Refusal(code, f"{field}: {problem}", {"field": field, **details}))


def not_found(kind: str, name: str) -> Refusal:
    details = {"resource_type": kind, "resource_id": name}
    return Refusal("not_found", f"{kind.capitalize()} {name[:128]} not found", details)


def wrong_state(operation: str, job_id: str, state: str, expected: str) -> Refusal:
    """The 409 for an operation that the state of the job does not allow."""
    return Refusal(
        "conflict",
        f"Cannot {operation} job {job_id}: it is {state}, not {expected}",
        {"job_id": job_id, "current_state": state, "expected_state": expected},
    )
