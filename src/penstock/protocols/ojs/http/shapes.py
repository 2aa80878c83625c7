"""What goes in and comes out, as JSON Schemas for the OpenAPI document.

They say what a client may rely on. Servers add members; clients ignore those they do not know.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.protocols.ojs.names import STATES

__all__ = ["QUERY", "SHAPES"]

Shape = dict[str, Any]

_TEXT: Final[Shape] = {"type": "string"}
_COUNT: Final[Shape] = {"type": "integer", "minimum": 0}
_FLAG: Final[Shape] = {"type": "boolean"}
_ANY: Final[Shape] = {}
_MAP: Final[Shape] = {"type": "object"}
_TEXTS: Final[Shape] = {"type": "array", "items": _TEXT}
_WHEN: Final[Shape] = {"type": "string", "format": "date-time"}
_ID: Final[Shape] = {
    "type": "string",
    "pattern": "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$",
}
_QUEUE: Final[Shape] = {"type": "string", "pattern": "^[a-z0-9][a-z0-9.-]{0,127}$"}
_TYPE: Final[Shape] = {
    "type": "string",
    "pattern": r"^[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)*$",
    "maxLength": 255,
}
_STATE: Final[Shape] = {"enum": list(STATES)}
_MS: Final[Shape] = {"type": "integer", "minimum": 1}


def _ref(name: str) -> Shape:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: str = "", /, **members: Shape) -> Shape:
    """An object with ``members``; those named in ``required`` are always there."""
    shape: Shape = {"type": "object", "properties": members}
    if required:
        shape["required"] = required.split()
    return shape


def _list(of: Shape) -> Shape:
    return {"type": "array", "items": of}


_OPTIONS: Final = _object(
    queue=_QUEUE,
    priority={"type": "integer", "minimum": -100, "maximum": 100},
    timeout_ms=_MS,
    delay_until=_TEXT,
    scheduled_at=_TEXT,
    expires_at=_TEXT,
    retry=_MAP,
    unique=_MAP,
    rate_limit=_MAP,
    tags=_TEXTS,
    visibility_timeout_ms=_MS,
    metadata=_MAP,
    pending=_FLAG,
    result_ttl={"type": "integer", "minimum": -1},
)
_ERROR: Final = _object(
    "code message retryable request_id",
    code=_TEXT,
    message={"type": "string", "minLength": 1},
    retryable=_FLAG,
    details=_MAP,
    request_id=_TEXT,
    hint=_TEXT,
    docs_url=_TEXT,
)
_JOB: Final = _object(
    "specversion id type queue args meta priority state attempt max_attempts created_at "
    "enqueued_at",
    specversion={"const": "1.0"},
    id=_ID,
    type=_TYPE,
    queue=_QUEUE,
    args={"type": "array"},
    meta=_MAP,
    priority={"type": "integer"},
    state=_STATE,
    attempt=_COUNT,
    max_attempts=_COUNT,
    created_at=_WHEN,
    enqueued_at=_WHEN,
    scheduled_at=_TEXT,
    expires_at=_TEXT,
    started_at=_WHEN,
    completed_at=_WHEN,
    cancelled_at=_WHEN,
    discarded_at=_WHEN,
    next_attempt_at=_WHEN,
    retry_delay_ms=_COUNT,
    error=_MAP,
    errors={"type": "array"},
    result=_ANY,
    tags=_TEXTS,
)
_SETTLED: Final = _object(
    "id job_id state job", id=_ID, job_id=_ID, state=_STATE, attempt=_COUNT, job=_ref("Job")
)
_CRON: Final = _object(
    "name expression timezone overlap_policy enabled job_template",
    name=_TEXT,
    expression=_TEXT,
    timezone=_TEXT,
    overlap_policy=_TEXT,
    enabled=_FLAG,
    job_template=_MAP,
    run_count=_COUNT,
)
_QUEUE_STATS: Final = _object(
    "name paused", name=_QUEUE, paused=_FLAG, **dict.fromkeys(STATES, _COUNT)
)

SHAPES: Final[dict[str, Shape]] = {
    "Anything": _MAP,
    "Error": _object("error", error=_ERROR),
    "JobRequest": _object(
        "type args", type=_TYPE, args={"type": "array"}, id=_ID, meta=_MAP, options=_OPTIONS
    ),
    "Job": _JOB,
    "JobReply": _object("job", job=_ref("Job")),
    "BatchRequest": _object(
        "jobs", jobs={"type": "array", "items": _ref("JobRequest"), "minItems": 1}
    ),
    "BatchReply": _object("jobs count", jobs=_list(_ref("Job")), count=_COUNT),
    "PriorityRequest": _object(
        "priority", priority={"type": "integer", "minimum": -100, "maximum": 100}
    ),
    "CancelRequest": _object(reason=_TEXT),
    "FetchRequest": _object(
        "queues",
        queues={"type": "array", "items": _QUEUE, "minItems": 1},
        count={"type": "integer", "minimum": 1},
        worker_id=_TEXT,
        visibility_timeout_ms=_MS,
        wait_ms={"type": "integer", "minimum": 0, "maximum": 60000},
    ),
    "FetchReply": _object("jobs", jobs=_list(_ref("Job"))),
    "AckRequest": _object("job_id", job_id=_TEXT, result=_ANY, worker_id=_TEXT, attempt=_COUNT),
    "JobAckRequest": _object(result=_ANY, worker_id=_TEXT, attempt=_COUNT),
    "NackRequest": _object("job_id", job_id=_TEXT, error=_MAP, requeue=_FLAG, worker_id=_TEXT),
    "JobNackRequest": _object(error=_MAP, requeue=_FLAG, worker_id=_TEXT),
    "Settled": _SETTLED,
    "BeatRequest": _object(
        "worker_id",
        worker_id={"type": "string", "minLength": 1},
        active_jobs=_ANY,
        active_job_ids=_TEXTS,
        state={"enum": ["running", "quiet", "terminate", "drain"]},
        visibility_timeout_ms=_MS,
    ),
    "BeatReply": _object(
        "acknowledged state jobs_extended cancelled_jobs server_time",
        acknowledged=_FLAG,
        state=_TEXT,
        jobs_extended=_TEXTS,
        cancelled_jobs=_TEXTS,
        server_time=_WHEN,
    ),
    "CronRequest": _object(
        "name",
        name=_TEXT,
        expression=_TEXT,
        timezone=_TEXT,
        overlap_policy={"enum": ["skip", "allow", "cancel_previous", "enqueue"]},
        enabled=_FLAG,
        job_template=_MAP,
    ),
    "EnabledRequest": _object("enabled", enabled=_FLAG),
    "CronReply": _object("cron", cron=_CRON),
    "CronList": _object("crons", crons=_list(_CRON)),
    "WorkflowRequest": _object(type=_TEXT, name=_TEXT, steps={"type": "array"}, jobs=_ANY),
    "WorkflowReply": _object("workflow", workflow=_object("id state", id=_ID, state=_TEXT)),
    "QueueReply": _object("queue", queue=_QUEUE_STATS),
    "QueueList": _object("queues", queues=_list(_object("name", name=_QUEUE))),
    "JobList": _object("jobs", jobs=_list(_ref("Job")), pagination=_MAP),
    "EventList": _object(
        "events has_more", events=_list(_MAP), cursor={"type": ["string", "null"]}, has_more=_FLAG
    ),
    "CheckpointRequest": _object("state", state=_ANY),
    "CheckpointReply": _object("job_id state sequence", job_id=_ID, state=_ANY, sequence=_COUNT),
    "ProgressRequest": _object(progress={"type": "number"}, message=_TEXT, data=_MAP),
    "ProgressReply": _object("job_id", job_id=_ID),
    "SchemaRequest": _object("schema", schema=_MAP),
    "SchemaReply": _object("type version schema created_at", type=_TYPE, schema=_MAP),
    "HookRequest": _object(
        url=_TEXT, events=_TEXTS, secret=_TEXT, filter=_MAP, metadata=_MAP, active=_FLAG
    ),
    "HookReply": _object(
        "subscription",
        subscription=_object("id url events active", id=_TEXT, url=_TEXT, events=_TEXTS),
    ),
    "Health": _object("status", status=_TEXT),
}

QUERY: Final[dict[str, Shape]] = {
    "": _TEXT,
    "limit": {"type": "integer", "minimum": 1, "maximum": 1000},
    "offset": _COUNT,
    "page": {"type": "integer", "minimum": 1},
    "per_page": {"type": "integer", "minimum": 1, "maximum": 100},
    "timeout": {"type": "number"},
    "wait": {"type": "string", "enum": ["true", "false"]},
}
