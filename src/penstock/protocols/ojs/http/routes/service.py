"""The server about itself: manifest, health, readiness, metrics, the OpenAPI document."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Final

from penstock.protocols.ojs.http.exchange import Exchange
from penstock.protocols.ojs.http.replies import VERSION
from penstock.protocols.ojs.http.routing import Routes
from penstock.web.message import Response

__all__ = ["LEVEL", "SERVICE", "manifest"]

SERVICE: Final = Routes("service")
LEVEL: Final = 4
_EXTENSIONS: Final = (
    "admin-api",
    "backpressure",
    "dead-letter",
    "durable-execution",
    "encryption",
    "fair-scheduling",
    "graceful-shutdown",
    "job-versioning",
    "middleware",
    "multi-tenancy",
    "observability",
    "progress",
    "rate-limiting",
    "schema-registry",
    "webhooks",
)


@SERVICE.on("GET", "/ojs/manifest", role=None)
async def show_manifest(x: Exchange) -> Response:
    """What this server is and can do."""
    return x.ok(manifest(x))


@SERVICE.on("GET", "/ojs/v1/health", "/health", role=None, gives="Health", success=(200, 503))
async def health(x: Exchange) -> Response:
    """Whether the server and its store are well."""
    latency_ms = await x.desk.ping_ms()
    well = latency_ms is not None
    backend: dict[str, Any] = {"type": "nats", "status": "ok" if well else "unhealthy"}
    if latency_ms is not None:
        backend["latency_ms"] = round(latency_ms, 3)
    return x.ok(
        {
            "status": "ok" if well else "degraded",
            "version": VERSION,
            "uptime_seconds": round(x.desk.uptime_s, 3),
            "backend": backend,
        },
        200 if well else 503,
        **({} if well else {"retry_after": "1"}),
    )


@SERVICE.on("GET", "/ready", "/ojs/v1/ready", role=None, gives="Health", success=(200, 503))
async def ready(x: Exchange) -> Response:
    """Whether this instance takes requests: its index is loaded and it is not stopping."""
    if x.engine.ready and not x.desk.stopping:
        return x.ok({"status": "ready"})
    return x.ok({"status": "not_ready"}, 503, retry_after="1")


@SERVICE.on("GET", "/metrics", role=None, media="text/plain")
async def metrics(x: Exchange) -> Response:
    """What there is and what happened, for Prometheus."""
    asked = x.request.header("accept")
    media = "text/plain" if asked == "text/plain" else "text/plain; version=0.0.4; charset=utf-8"
    headers = (("content-type", media), ("x-request-id", x.request_id))
    return Response(200, x.desk.meters.text(), headers)


@SERVICE.on("GET", "/ojs/openapi.json", role=None)
async def show_openapi(x: Exchange) -> Response:
    """This document."""
    return x.ok(x.desk.openapi)


def manifest(x: Exchange) -> dict[str, Any]:
    limits = x.desk.limits
    return {
        "specversion": VERSION,
        "ojs_version": VERSION,
        "implementation": {
            "name": "penstock",
            "version": version("penstock"),
            "language": "python",
        },
        "conformance_level": LEVEL,
        "protocols": ["http"],
        "backend": "nats",
        "capabilities": {
            **dict.fromkeys(
                (
                    "batch_enqueue",
                    "cron_jobs",
                    "dead_letter",
                    "delayed_jobs",
                    "job_ttl",
                    "priority_queues",
                    "rate_limiting",
                    "schema_validation",
                    "workflows",
                    "pause_resume",
                ),
                True,
            ),
            "unique_jobs": {"strength": "strong", "mechanism": "compare-and-set on one lock a key"},
        },
        "extensions": [f"urn:ojs:ext:{name}" for name in _EXTENSIONS],
        "limits": {
            "max_envelope_bytes": limits.max_envelope_bytes,
            "max_meta_bytes": limits.max_meta_bytes,
            "max_queue_name_bytes": 128,
            "max_job_type_bytes": 255,
            "max_batch_size": limits.max_batch_jobs,
            "supported_compression": ["gzip"],
            "external_references": True,
        },
        "endpoints": {
            "base_url": "/ojs/v1",
            "manifest": "/ojs/manifest",
            "health": "/ojs/v1/health",
            "openapi": "/ojs/openapi.json",
        },
    }
