"""Several faces on one server: who answers which path.

A face owns prefixes. The longest one that fits wins, so ``/ojs`` and ``/`` can stand side
by side. What nobody owns is answered here.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from penstock.web.message import Face, Request, Response, Socket, Streaming

__all__ = ["Mounts"]

_NOT_FOUND = b'{"error":{"code":"not_found","message":"nothing is served at this path"}}'
_JSON = (("content-type", "application/json"),)


class Mounts:
    """Faces by path prefix; itself a `Face`."""

    def __init__(self, faces: Mapping[str, Face] | None = None) -> None:
        self._faces: list[tuple[str, Face]] = []
        for prefix, face in (faces or {}).items():
            self.mount(prefix, face)

    def mount(self, prefix: str, face: Face) -> None:
        """Give ``face`` all paths at and below ``prefix`` (``/`` is everything)."""
        self._faces.append((prefix.rstrip("/"), face))
        self._faces.sort(key=lambda one: len(one[0]), reverse=True)

    def owner(self, path: str) -> Face | None:
        for prefix, face in self._faces:
            if path == prefix or path.startswith(f"{prefix}/"):
                return face
        return None

    async def answer(self, request: Request) -> Response | Streaming:
        face = self.owner(request.path)
        if face is None:
            return Response(404, _NOT_FOUND, _JSON)
        return await face.answer(request)

    def socket(self, request: Request) -> Callable[[Socket], Coroutine[Any, Any, None]] | None:
        face = self.owner(request.path)
        return None if face is None else face.socket(request)
