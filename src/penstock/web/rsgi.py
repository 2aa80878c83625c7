"""A face under granian: its RSGI calls become requests, our responses go back as they are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from penstock.web.limits import BadEncoding, TooLarge, collected, refused, unpacked
from penstock.web.message import Face, Request, Response, Streaming

__all__ = ["RsgiApp"]

_log = logging.getLogger("penstock.http")

_JSON = [("content-type", "application/json")]
_FAULT = b'{"error":{"code":"backend_error","message":"an unexpected fault; see the server log"}}'
_TOO_LARGE = 413
_BAD_REQUEST = 400


class RsgiApp:
    """What granian calls. One slow or failing request never disturbs the others."""

    def __init__(self, face: Face, *, max_bytes: int) -> None:
        self._face = face
        self._max_bytes = max_bytes
        self._open: set[asyncio.Task[None]] = set()

    def hang_up(self) -> None:
        """End the streams and sockets that would go on for ever."""
        for task in self._open:
            task.cancel()

    async def __rsgi__(self, scope: Any, proto: Any) -> None:
        if scope.proto != "http":
            await self._socket(scope, proto)
            return
        request = _request_of(scope)
        request.gone = partial(_gone, proto)
        try:
            request.body = await self._body(request, proto)
        except TooLarge as error:
            proto.response_bytes(_TOO_LARGE, _JSON, _said("envelope_too_large", str(error)))
            return
        except BadEncoding as error:
            proto.response_bytes(_BAD_REQUEST, _JSON, _said("invalid_request", str(error)))
            return
        try:
            response = await self._face.answer(request)
        except Exception:  # noqa: BLE001 - a face that raises has a bug; its client gets an answer
            _log.exception("%s %s failed", request.method, request.path)
            response = Response(500, _FAULT, _JSON)
        if isinstance(response, Streaming):
            await self._held(_stream(response, proto))
        else:
            body = b"" if request.method == "HEAD" else response.body
            proto.response_bytes(response.status, list(response.headers), body)

    async def _body(self, request: Request, proto: Any) -> bytes:
        """The unpacked body, held only while it is within the limit."""
        length = request.header("content-length")
        if length.isdigit():
            size = int(length)
            if size > self._max_bytes:
                raise await refused(proto, self._max_bytes)
            body = bytes(await proto()) if size else b""
        elif request.header("transfer-encoding"):
            body = await collected(proto, self._max_bytes)
        elif request.method in ("GET", "HEAD", "DELETE"):
            return b""
        else:
            body = await collected(proto, self._max_bytes)
        encoding = request.headers.get("content-encoding")
        return body if encoding is None else unpacked(body, str(encoding), self._max_bytes)

    async def _socket(self, scope: Any, proto: Any) -> None:
        serve = self._face.socket(_request_of(scope))
        if serve is None:
            proto.close(403)
            return
        transport = await proto.accept()
        try:
            with suppress(ConnectionError):
                await self._held(serve(_Socket(transport)))
        except Exception:  # noqa: BLE001 - as for requests
            _log.exception("the socket at %s failed", scope.path)
        finally:
            proto.close()

    async def _held(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what may go on for ever, until `hang_up`."""
        task = asyncio.create_task(work, name="http:open")
        self._open.add(task)
        try:
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()
        finally:
            self._open.discard(task)
            task.cancel()


def _request_of(scope: Any) -> Request:
    return Request(
        method=scope.method,
        path=scope.path,
        headers=scope.headers,
        query_string=scope.query_string,
        client=scope.client,
    )


async def _gone(proto: Any) -> None:
    """Granian's awaitables look like futures and are none: only a task may be waited for."""
    await proto.client_disconnect()


async def _stream(response: Streaming, proto: Any) -> None:
    """Send chunks until they end or the client is gone; either way the source is closed."""
    transport = proto.response_stream(response.status, list(response.headers))
    sending = asyncio.create_task(_send_all(response, transport), name="http:stream")
    hung_up = asyncio.create_task(_gone(proto), name="http:gone")
    try:
        await asyncio.wait([sending, hung_up], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sending, hung_up):
            task.cancel()
        await asyncio.gather(sending, hung_up, return_exceptions=True)


async def _send_all(response: Streaming, transport: Any) -> None:
    try:
        async with aclosing(response.chunks) as chunks:
            async for chunk in chunks:
                await transport.send_bytes(chunk)
    except Exception as error:  # noqa: BLE001 - the client is gone, or the source failed midway
        _log.debug("a stream ended early: %r", error)


class _Socket:
    """Granian's WebSocket as ours."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    async def receive(self) -> str | bytes | None:
        message = await self._transport.receive()
        return None if int(message.kind) == 0 else message.data

    async def send(self, text: str) -> None:
        try:
            await self._transport.send_str(text)
        except Exception as error:
            raise ConnectionError("the WebSocket is closed") from error


def _said(code: str, message: str) -> bytes:
    import msgspec

    return msgspec.json.encode({"error": {"code": code, "message": message, "retryable": False}})
