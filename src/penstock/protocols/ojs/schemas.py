"""The schema registry: what arguments of a job type look like, version by version.

A version never changes once it is registered. Reading is served from a copy of the bucket,
so that checking a job costs no round trip; whoever registered a schema sees it at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from penstock.broker.bucket import Bucket
from penstock.broker.entry import Entry
from penstock.broker.mirror import Mirror
from penstock.broker.publisher import Refused as Lost
from penstock.broker.publisher import Stored, Unknown
from penstock.core.errors import ConfigError
from penstock.core.schema import Validator
from penstock.protocols.ojs.instants import instant_text
from penstock.protocols.ojs.names import queue_token
from penstock.protocols.ojs.refusal import Refusal, not_found
from penstock.protocols.ojs.room import WIPED

__all__ = ["Checking", "Registered", "SchemaRegistry"]

Checking = Literal["off", "warn", "strict"]

_VERSION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+-]{0,63}", re.ASCII)
_NUMBERS: Final = re.compile(r"\d+")
_RESERVED: Final = "versions"


class Registered(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One version of one type's schema, as it is stored and shown."""

    type: str
    version: str
    schema: Raw
    created_at: str
    uri: str = ""

    @property
    def shown_version(self) -> int | str:
        """Whole numbers travel as numbers."""
        return int(self.version) if self.version.isdigit() else self.version

    @property
    def order(self) -> tuple[tuple[int, ...], str]:
        """Versions in the order people count them: 2 before 10, 1.9.0 before 1.10.0."""
        return tuple(int(n) for n in _NUMBERS.findall(self.version)), self.version


class SchemaRegistry:
    """Registered schemas over one bucket. Use as a context."""

    def __init__(self, bucket: Bucket, clock: Callable[[], datetime]) -> None:
        self._bucket = bucket
        self._clock = clock
        self._types: dict[str, dict[str, Registered]] = {}
        self._keys: dict[str, tuple[str, str]] = {}
        self._validators: dict[tuple[str, str], Validator | None] = {}
        self._mirror = Mirror.of_bucket(bucket, self._apply, reset=self._forget)

    async def __aenter__(self) -> SchemaRegistry:
        await self._mirror.start()
        await self._mirror.ready.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._mirror.stop()

    # Changing -------------------------------------------------------------------------

    async def register(
        self, job_type: str, version: str, schema: Raw, uri: str = ""
    ) -> Registered | Refusal:
        """Add a version. A version that exists is refused, whatever it says."""
        if (fault := _fault_of(version, schema)) is not None:
            return fault
        entry = Registered(
            type=job_type,
            version=version,
            schema=schema,
            created_at=instant_text(self._clock()),
            uri=uri,
        )
        key = _key(job_type, version)
        value = msgspec.json.encode(entry)
        outcome = await self._bucket.create(key, value)
        if isinstance(outcome, Unknown):
            outcome = await self._bucket.settle_unknown(key, value, revision=0)
        match outcome:
            case Stored():
                await self._mirror.barrier()
                return entry
            case Lost(is_conflict=True):
                return Refusal(
                    "conflict",
                    f"Version {version} of the schema of {job_type} is registered already",
                    {"type": job_type, "version": entry.shown_version},
                )
        return Refusal("backend_unavailable", "The schema could not be stored")

    async def remove(self, job_type: str, version: str) -> Refusal | None:
        """Forget a version; jobs that were accepted under it are not touched."""
        await self._mirror.barrier()
        if version not in self._types.get(job_type, {}):
            return not_found("schema", f"{job_type}/{version}")
        outcome = await self._bucket.delete(_key(job_type, version))
        if not isinstance(outcome, Stored):
            return Refusal("backend_unavailable", "The schema could not be removed")
        await self._mirror.barrier()
        return None

    # Reading --------------------------------------------------------------------------

    async def fresh(self) -> None:
        """Wait for what others have registered before this call."""
        await self._mirror.barrier()

    def all(self) -> list[Registered]:
        """Every version of every type, by name, oldest version first."""
        return [one for name in sorted(self._types) for one in self.versions(name)]

    def versions(self, job_type: str) -> list[Registered]:
        return sorted(self._types.get(job_type, {}).values(), key=lambda one: one.order)

    def latest(self, job_type: str) -> Registered | None:
        found = self._types.get(job_type)
        return max(found.values(), key=lambda one: one.order) if found else None

    def get(self, job_type: str, version: str) -> Registered | None:
        return self._types.get(job_type, {}).get(version)

    def by_uri(self, uri: str) -> Registered | None:
        return next((one for one in reversed(self.all()) if one.uri == uri), None)

    # Checking -------------------------------------------------------------------------

    def problems(self, job_type: str, version: str, args: Raw) -> list[dict[str, str]]:
        """How ``args`` miss the schema of ``version``, or of the newest when that is not
        registered; empty when they fit or when there is none."""
        if not self._types:
            return []
        chosen = self.get(job_type, version) or self.latest(job_type)
        if chosen is None:
            return []
        validator = self._validator(chosen)
        if validator is None:
            return []
        faults = validator.problems(msgspec.json.decode(args))
        return [{"path": path, "message": message} for path, message in faults]

    def _validator(self, chosen: Registered) -> Validator | None:
        """The compiled schema; ``None`` for one that is kept but cannot be compiled."""
        key = (chosen.type, chosen.version)
        if key not in self._validators:
            try:
                self._validators[key] = Validator.of(bytes(chosen.schema))
            except ConfigError:
                self._validators[key] = None
        return self._validators[key]

    def _apply(self, entry: Entry) -> None:
        if entry.key == WIPED:
            self._forget()
            return
        known = self._keys.pop(entry.key, None)
        if known is not None:
            job_type, version = known
            self._validators.pop(known, None)
            versions = self._types[job_type]
            versions.pop(version, None)
            if not versions:
                del self._types[job_type]
        if not entry.deleted:
            found = msgspec.json.decode(entry.value, type=Registered)
            self._types.setdefault(found.type, {})[found.version] = found
            self._keys[entry.key] = (found.type, found.version)

    def _forget(self) -> None:
        self._types.clear()
        self._keys.clear()
        self._validators.clear()


def _key(job_type: str, version: str) -> str:
    return f"{queue_token(job_type)}.{queue_token(version)}"


def _fault_of(version: str, schema: Raw) -> Refusal | None:
    if not _VERSION.fullmatch(version) or version == _RESERVED:
        message = "version: a number or a name like 2.0.0, and not 'versions'"
        return Refusal("invalid_request", message, {"field": "version"})
    text = bytes(schema)
    if text[:1] != b"{" or not msgspec.json.decode(schema):
        message = "schema: is required and must be an object that says something"
        return Refusal("invalid_request", message, {"field": "schema"})
    declares: Any = msgspec.json.decode(schema).get("$schema")
    if declares is None:
        return None  # written for some draft that we are not told: kept, checked leniently
    try:
        Validator.of(text)
    except ConfigError as error:
        return Refusal("invalid_request", f"schema: {error.message}", {"field": "schema"})
    return None
