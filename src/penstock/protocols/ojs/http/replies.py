"""Answers: one media type, one set of headers, one shape of error, on every path.

The encoder keeps raw JSON as it is, so what a client sent comes back byte for byte.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.protocols.ojs.refusal import Refusal
from penstock.web.message import Response

__all__ = ["JSON", "OJS_JSON", "VERSION", "Media", "accepted_media", "refused", "reply"]

Media = str

OJS_JSON: Final = "application/openjobspec+json"
JSON: Final = "application/json"
VERSION: Final = "1.0"

_encode: Final = msgspec.json.Encoder().encode
_RETRY_AFTER_S: Final = 1
_WAITS: Final = frozenset((429, 503))


def accepted_media(accept: str) -> Media:
    """The type to answer with: the specification's own, unless only plain JSON is asked for.

    >>> accepted_media("application/json")
    'application/json'
    >>> accepted_media("application/json, application/openjobspec+json")
    'application/openjobspec+json'
    """
    if not accept or accept == "*/*" or OJS_JSON in accept:
        return OJS_JSON
    return JSON if JSON in accept else OJS_JSON


def reply(
    status: int,
    content: Any,
    *,
    request_id: str,
    media: Media = OJS_JSON,
    headers: tuple[tuple[str, str], ...] = (),
) -> Response:
    fixed = (("content-type", media), ("ojs-version", VERSION), ("x-request-id", request_id))
    return Response(status, _encode(content), (*fixed, *headers))


def refused(
    refusal: Refusal,
    *,
    request_id: str,
    media: Media = OJS_JSON,
    headers: tuple[tuple[str, str], ...] = (),
) -> Response:
    """The error body; what may be tried again later says when."""
    if refusal.status in _WAITS:
        wait = _RETRY_AFTER_S if refusal.retry_after_s is None else refusal.retry_after_s
        headers = (*headers, ("retry-after", str(max(wait, 1))))
    body = refusal.body(request_id)
    return reply(refusal.status, body, request_id=request_id, media=media, headers=headers)
