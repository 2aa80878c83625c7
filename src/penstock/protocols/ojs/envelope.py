"""The job envelope as clients send it: read, checked and resolved into a `Submission`.

A submission is valid as a whole or refused with the path of the first member that does not
fit. What the server only passes on is kept byte for byte, unknown members included.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from penstock.protocols.ojs.fields import MISSING, NO_FIELDS, Fields, members
from penstock.protocols.ojs.instants import in_ms, instant_text
from penstock.protocols.ojs.names import DEFAULT_QUEUE, JOB_ID, JOB_TYPE, QUEUE_NAME
from penstock.protocols.ojs.options import Limits
from penstock.protocols.ojs.record import Job
from penstock.protocols.ojs.refusal import Refusal, Refused, invalid
from penstock.protocols.ojs.retry import DEFAULT_RETRY, RetryPolicy, parse_retry
from penstock.protocols.ojs.throttle import RateLimit, parse_rate_limit
from penstock.protocols.ojs.unique import UniquePolicy, parse_unique

__all__ = ["NO_META", "Submission", "parse_submission", "too_large"]

NO_META: Final = Raw(b"{}")
NO_ARGS: Final = Raw(b"[]")

# Members at the top level that are options in the older JSON format.
_TOP_OPTIONS: Final = frozenset(
    (
        *("queue", "priority", "retry", "retry_policy", "unique", "rate_limit", "tags"),
        *("scheduled_at", "delay_until", "expires_at", "timeout", "timeout_ms"),
        *("visibility_timeout", "visibility_timeout_ms", "heartbeat_timeout", "total_timeout"),
        *("enqueue_ttl", "grace_period", "result_ttl"),
    )
)
_NAMED: Final = frozenset(
    ("type", "args", "id", "meta", "schema", "version", "options", "parent_id", "root_id")
)
# A client that sends what the server sets is not believed; everything else is passed on.
_TAKEN: Final = frozenset(Job.__struct_fields__) | _TOP_OPTIONS | _NAMED | {"lease"}
_TYPE_RULE: Final = "must be lower-case words joined by dots, like email.send"
_ID_RULE: Final = "must be a UUIDv7 in lower case"
_QUEUE_RULE: Final = "must be lower-case letters, digits, - and ., at most 128"
_MAX_MS: Final = 10**13


class Submission(Struct, frozen=True, kw_only=True):
    """A job as asked for. ``*_text`` is how a time is echoed; zero means not given."""

    type: str
    args: Raw = NO_ARGS
    id: str = ""
    meta: Raw = NO_META
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    retry: RetryPolicy = DEFAULT_RETRY
    unique: UniquePolicy | None = None
    unique_shown: Raw | None = None
    rate_limit: RateLimit | None = None
    rate_limit_shown: Raw | None = None
    scheduled_at_ms: int = 0
    scheduled_at: str = ""
    expires_at_ms: int = 0
    expires_at: str = ""
    timeout_ms: int = 0
    visibility_timeout_ms: int = 0
    heartbeat_timeout: int = 0
    total_timeout: int = 0
    enqueue_ttl: int = 0
    grace_period: int = 0
    result_ttl: int | None = None
    tags: tuple[str, ...] = ()
    pending: bool = False
    schema: str = ""
    version: Raw | None = None
    parent_id: str = ""
    root_id: str = ""
    tenant: str = ""
    extra: dict[str, Raw] = {}


def parse_submission(
    raw: Mapping[str, Raw],
    *,
    now: datetime,
    limits: Limits,
    tenant: str = "",
    retry: RetryPolicy = DEFAULT_RETRY,
    path: str = "",
) -> Submission:
    """Check one job. ``retry`` fills what its policy leaves out; ``path`` is where it stands.

    Raises `Refused`; the checks run in the order of the reference, so the first fault is told.
    """
    fields = Fields(dict(raw), path)
    job_type = fields.name("type", JOB_TYPE, _TYPE_RULE)
    if job_type is None:
        raise fields.bad("type", "is required")
    args = fields.array("args")
    if args is None:
        raise fields.bad("args", "is required and must be an array")
    job_id = fields.name("id", JOB_ID, _ID_RULE)
    meta = fields.object("meta") or NO_META
    options = _Options.of(fields)
    own_meta, owner = _meta(meta, options, tenant, limits, fields)
    times = _times(options, now)
    return Submission(
        type=job_type,
        args=args,
        id=job_id or "",
        meta=own_meta,
        queue=options.name("queue", QUEUE_NAME, _QUEUE_RULE) or DEFAULT_QUEUE,
        priority=options.whole("priority", -100, 100) or 0,
        **_policies(options, retry),
        **times,
        **_lengths(options),
        tags=_tags(options, limits),
        pending=options.flag("pending") or False,
        schema=fields.text("schema", max_chars=2048) or "",
        version=_version(fields),
        parent_id=fields.text("parent_id", max_chars=64) or "",
        root_id=fields.text("root_id", max_chars=64) or "",
        tenant=owner,
        extra={k: v for k, v in raw.items() if k not in _TAKEN},
    )


def too_large(what: str, size: int, limit: int) -> Refusal:
    return Refusal(
        "envelope_too_large",
        f"The {what} has {size} bytes, {limit} are allowed",
        {"size_bytes": size, "limit_bytes": limit},
    )


class _Options(Fields):
    """Options from both places; what stands in ``options`` wins."""

    __slots__ = ("given",)

    given: dict[str, Raw]

    @classmethod
    def of(cls, fields: Fields) -> _Options:
        raw = fields.raw.get("options")
        given = NO_FIELDS if raw is None else members(raw, fields.at("options"))
        merged = {k: v for k, v in fields.raw.items() if k in _TOP_OPTIONS}
        merged.update(given)
        options = cls(merged, fields.path)
        options.given = given
        return options

    def at(self, name: str) -> str:
        place = f"options.{name}" if name in self.given else name
        return f"{self.path}.{place}" if self.path else place


def _policies(options: _Options, base: RetryPolicy) -> dict[str, Any]:
    found: dict[str, Any] = {"retry": base}
    for name in ("retry_policy", "retry"):
        if (retry := options.fields(name)) is not None:
            found["retry"] = parse_retry(retry, base)
    if (unique := options.fields("unique")) is not None:
        found["unique"] = parse_unique(unique)
        found["unique_shown"] = options.raw["unique"]
    if (limit := options.fields("rate_limit")) is not None:
        found["rate_limit"] = parse_rate_limit(limit)
        found["rate_limit_shown"] = options.raw["rate_limit"]
    return found


def _times(options: _Options, now: datetime) -> dict[str, Any]:
    found: dict[str, Any] = {}
    name = "scheduled_at" if "scheduled_at" in options else "delay_until"
    if (scheduled := options.moment(name, now)) is not None:
        found["scheduled_at_ms"] = in_ms(scheduled[0])
        found["scheduled_at"] = scheduled[1] or instant_text(scheduled[0])
    if (expires := options.moment("expires_at", now)) is not None:
        found["expires_at_ms"] = in_ms(expires[0])
        found["expires_at"] = expires[1] or instant_text(expires[0])
    return found


def _lengths(options: _Options) -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["timeout_ms"] = _in_ms(options, "timeout_ms", "timeout")
    found["visibility_timeout_ms"] = _in_ms(options, "visibility_timeout_ms", "visibility_timeout")
    for name in ("heartbeat_timeout", "total_timeout", "enqueue_ttl", "grace_period"):
        if name in options:
            found[name] = options.whole(name, 1, _MAX_MS // 1000)
    if "result_ttl" in options:
        found["result_ttl"] = options.whole("result_ttl", -1, _MAX_MS // 1000)
    return found


def _in_ms(options: _Options, name: str, alias: str) -> int:
    """Milliseconds, or under the alias seconds or an ISO duration."""
    if name in options:
        return options.whole(name, 1, _MAX_MS) or 0
    value = options.value(alias)
    if value is MISSING:
        return 0
    if isinstance(value, str):
        length = options.length(alias)
        ms = 0 if length is None else round(length.total_seconds() * 1000)
    else:
        ms = (options.whole(alias, 1, _MAX_MS // 1000) or 0) * 1000
    if ms <= 0:
        raise options.bad(alias, "must be longer than zero")
    return ms


def _tags(options: _Options, limits: Limits) -> tuple[str, ...]:
    return options.texts("tags", max_items=limits.max_tags) or ()


def _version(fields: Fields) -> Raw | None:
    value = fields.value("version")
    if value is MISSING:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise fields.bad("version", "must be an integer or a string")
    return fields.raw["version"]


def _meta(
    meta: Raw, options: _Options, tenant: str, limits: Limits, fields: Fields
) -> tuple[Raw, str]:
    """The meta to keep, and the tenant: its ``tenant_id`` or the header's, which must agree."""
    additions = options.object("metadata") or options.object("meta")
    if additions is None and not tenant and b'"tenant_id"' not in bytes(meta):
        kept, owner = meta, ""
    else:
        kept, owner = _merged(meta, additions, tenant, fields)
    if len(bytes(kept)) > limits.max_meta_bytes:
        raise Refused(too_large("meta", len(bytes(kept)), limits.max_meta_bytes))
    return kept, owner


def _merged(meta: Raw, additions: Raw | None, tenant: str, fields: Fields) -> tuple[Raw, str]:
    both = {**members(meta, "meta"), **(members(additions, "metadata") if additions else {})}
    if tenant:
        both.setdefault("tenant_id", Raw(msgspec.json.encode(tenant)))
    named = msgspec.json.decode(both["tenant_id"]) if "tenant_id" in both else ""
    owner = named if isinstance(named, str) else ""
    if tenant and owner != tenant:
        where = fields.at("meta.tenant_id")
        raise invalid(where, "differs from the X-OJS-Tenant header", code="invalid_request")
    return Raw(msgspec.json.encode(both)), owner
