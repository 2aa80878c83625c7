"""Crons: what is to be enqueued when, and firing it once per nominal instant.

No leader: the id of the job that an instant creates is computed from name and instant, and
written create-only, so that of any number of instances one succeeds. The row of the cron remembers
the last instant that was dealt with; after an absence the misfire policy says which of the
missed ones still fire.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from penstock.broker.errors import LinkClosed
from penstock.core import points
from penstock.core.cron import CronSchedule, Misfire, to_fire
from penstock.core.errors import ConfigError, PenstockError
from penstock.protocols.ojs import rules
from penstock.protocols.ojs.entry import Entry
from penstock.protocols.ojs.envelope import parse_submission
from penstock.protocols.ojs.fields import Fields, object_of
from penstock.protocols.ojs.instants import in_ms, instant_text, of_ms
from penstock.protocols.ojs.intake import Intake, Place, Pushed
from penstock.protocols.ojs.names import CRON_NAME, TERMINAL, fixed_id, queue_token
from penstock.protocols.ojs.record import Membership
from penstock.protocols.ojs.refusal import Refusal, invalid, not_found
from penstock.protocols.ojs.shared import Shared
from penstock.protocols.ojs.table import Table
from penstock.protocols.ojs.throttle import RateLimit
from penstock.protocols.ojs.told import Told

__all__ = ["CronRow", "Crons", "parse_cron"]

_log = logging.getLogger("penstock.ojs")
_LONGEST_SLEEP_S: Final = 30.0
_AGAIN_S: Final = 1.0
_MOST_MISSED: Final = 100
_TEMPLATE: Final = ("type", "args", "meta", "options", "schema", "version")
OVERLAPS: Final = ("skip", "allow", "cancel_previous", "enqueue")
Overlap = Literal["skip", "allow", "cancel_previous", "enqueue"]


class CronRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``last_ms``: the newest nominal instant that has been dealt with (or registration)."""

    name: str
    expression: str
    timezone: str = "UTC"
    overlap_policy: Overlap = "skip"
    misfire: Misfire = Misfire.ONCE
    enabled: bool = True
    description: str = ""
    template: Raw
    created_ms: int = 0
    last_ms: int = 0
    last_run_ms: int = 0
    run_count: int = 0

    @property
    def schedule(self) -> CronSchedule:
        anchor = of_ms(self.created_ms)
        return CronSchedule.parse(self.expression, self.timezone, anchor)

    @property
    def next_at(self) -> datetime | None:
        """When it fires next; ``None`` while disabled, or never again."""
        return self.schedule.next_after(of_ms(self.last_ms)) if self.enabled else None


def parse_cron(raw: Mapping[str, Raw], shared: Shared) -> CronRow:
    """A registration as sent by a client, in either form. Raises `Refused`."""
    fields = Fields(dict(raw))
    name = fields.name("name", CRON_NAME, f"must match {CRON_NAME.pattern}")
    if name is None:
        raise fields.bad("name", "is required")
    word = "expression" if "expression" in fields else "cron"
    expression = fields.text(word)
    if expression is None:
        raise fields.bad("expression", "is required")
    zone = fields.text("timezone") or "UTC"
    try:
        CronSchedule.parse(expression, zone, shared.clock())
    except ConfigError as error:
        field = "timezone" if error.code == "cron.zone" else word
        raise invalid(field, error.message) from error
    overlap: Any = fields.choice("overlap_policy", OVERLAPS) or "skip"
    enabled = fields.flag("enabled")
    return CronRow(
        name=name,
        expression=expression,
        timezone=zone,
        overlap_policy=overlap,
        misfire=Misfire(fields.choice("misfire_policy", tuple(Misfire)) or Misfire.ONCE),
        enabled=True if enabled is None else enabled,
        description=fields.text("description", max_chars=4096) or "",
        template=_template(fields, shared),
    )


class Crons:
    def __init__(self, shared: Shared, intake: Intake, told: Told) -> None:
        self._shared = shared
        self._intake = intake
        self._told = told
        self.table: Table[CronRow] = Table(shared.room.crons, "cron", CronRow)
        self.table.listen(lambda _name, _row: self._changed.set())
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # Keeping ----------------------------------------------------------------------------

    async def register(self, asked: CronRow) -> tuple[CronRow, bool]:
        """Keep a cron under its name; whether it is new. An update fires nothing in arrears."""
        now_ms, new = self._shared.now_ms, True

        def decide(old: CronRow | None) -> CronRow:
            nonlocal new
            new = old is None
            if old is None:
                return replace(asked, created_ms=now_ms, last_ms=now_ms)
            return replace(
                asked,
                created_ms=old.created_ms,
                last_ms=now_ms,
                last_run_ms=old.last_run_ms,
                run_count=old.run_count,
            )

        row = await self.table.change(queue_token(asked.name), decide)
        assert isinstance(row, CronRow)  # it never refuses
        return row, new

    async def all(self) -> list[CronRow]:
        await self.table.barrier()
        return [row for _, row in self.table.rows()]

    async def get(self, name: str) -> CronRow | Refusal:
        row = await self.table.read(queue_token(name))
        return not_found("cron", name) if row is None else row.value

    async def enable(self, name: str, enabled: bool) -> CronRow | Refusal:
        """Switch a cron on or off; what was missed while it was off stays missed."""
        now_ms = self._shared.now_ms

        def decide(old: CronRow | None) -> CronRow | Refusal:
            if old is None:
                return not_found("cron", name)
            return replace(old, enabled=enabled, last_ms=max(now_ms, old.last_ms))

        row = await self.table.change(queue_token(name), decide)
        return not_found("cron", name) if row is None else row

    async def remove(self, name: str) -> CronRow | Refusal:
        """Forget a cron; jobs it has created stay."""
        row = await self.get(name)
        if isinstance(row, Refusal):
            return row
        return row if await self.table.remove(queue_token(name)) else not_found("cron", name)

    # Firing -----------------------------------------------------------------------------

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="ojs:cron")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            try:
                pause = await self._turn()
            except LinkClosed:
                return
            except PenstockError as error:
                _log.warning("cron stopped for a moment: %s", error.message)
                pause = _AGAIN_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()

    async def _turn(self) -> float:
        """Fire what is due; how long until the next."""
        now = self._shared.clock()
        nearest = now + timedelta(seconds=_LONGEST_SLEEP_S)
        for _, row in list(self.table.rows()):
            at = row.next_at
            if at is not None and at <= now:
                at = await self._catch_up(row, now)
            if at is not None:
                nearest = min(nearest, at)
        return max((nearest - self._shared.clock()).total_seconds(), 0.001)

    async def _catch_up(self, seen: CronRow, now: datetime) -> datetime | None:
        """Deal with every instant of a cron up to ``now``; when it is due again."""
        kept = await self.table.read(queue_token(seen.name))
        if kept is None:
            return None
        row = kept.value
        if not row.enabled:
            return None
        last = of_ms(row.last_ms)
        due = to_fire(row.schedule, last, now, row.misfire, limit=_MOST_MISSED)
        for nominal in due:
            await self._fire(row, nominal)
        newest = row.schedule.previous(now + timedelta(microseconds=1))
        if newest is not None:
            await self._dealt_with(row, in_ms(newest), ran=False)
        return row.schedule.next_after(now)

    async def _fire(self, row: CronRow, nominal: datetime) -> None:
        job_id = fixed_id(in_ms(nominal), "cron", row.name, str(row.created_ms))
        await self._shared.books.barrier()
        index = self._shared.books.index
        if job_id not in index:
            previous = index.newest_of_cron(row.name)
            if previous is not None and previous.state in TERMINAL:
                previous = None
            if previous is not None and row.overlap_policy == "skip":
                self._told.cron_skipped(row.name, row.expression, "overlap_skip", previous.id)
                await self._dealt_with(row, in_ms(nominal), ran=False)
                return
            await self._create(row, nominal, job_id, previous)
        if points.armed:
            points.reach("ojs.cron_fired")
        await self._dealt_with(row, in_ms(nominal), ran=True)

    async def _create(
        self, row: CronRow, nominal: datetime, job_id: str, previous: Entry | None
    ) -> None:
        shared = self._shared
        if previous is not None and row.overlap_policy == "cancel_previous":
            await shared.books.store.change(
                previous.id,
                lambda r: rules.cancel(
                    r, shared.clock(), shared.dice, shared.keeping(r), reason="cancel_previous"
                ),
            )
        asked = parse_submission(
            _firing(row, nominal), now=shared.clock(), limits=shared.options.limits
        )
        if row.overlap_policy == "enqueue" and asked.rate_limit is None:
            asked = replace(asked, rate_limit=RateLimit(key=f"cron:{row.name}", concurrency=1))
        member = Membership(cron=row.name, nominal_ms=in_ms(nominal))
        done = await self._intake.push(asked, Place(job_id=job_id, member=member))
        if isinstance(done, Pushed):
            self._told.cron_triggered(row.name, row.expression, done.record, row.run_count + 1)
        elif done.details.get("existing_job_id") != job_id:
            _log.warning("cron %s could not enqueue: %s", row.name, done.message)
            self._told.cron_skipped(row.name, row.expression, done.code, "")

    async def _dealt_with(self, row: CronRow, nominal_ms: int, *, ran: bool) -> None:
        now_ms = self._shared.now_ms

        def decide(old: CronRow | None) -> CronRow | None:
            if old is None or old.created_ms != row.created_ms or old.last_ms >= nominal_ms:
                return None
            if not ran:
                return replace(old, last_ms=nominal_ms)
            return replace(old, last_ms=nominal_ms, last_run_ms=now_ms, run_count=old.run_count + 1)

        await self.table.change(queue_token(row.name), decide)


def _template(fields: Fields, shared: Shared) -> Raw:
    """The job to create, checked; from ``job_template`` or from the flat form."""
    inner = fields.fields("job_template")
    source = inner.raw if inner is not None else fields.raw
    path = inner.path if inner is not None else ""
    chosen: dict[str, Raw] = {name: source[name] for name in _TEMPLATE if name in source}
    chosen.setdefault("args", Raw(b"[]"))
    parse_submission(chosen, now=shared.clock(), limits=shared.options.limits, path=path)
    return Raw(msgspec.json.encode(chosen))


def _firing(row: CronRow, nominal: datetime) -> dict[str, Raw]:
    """The job that one instant creates: the template, and where it comes from."""
    body = object_of(bytes(row.template))
    meta = object_of(bytes(body["meta"])) if "meta" in body else {}
    told = {"cron_name": row.name, "cron_triggered_at": instant_text(nominal.astimezone(UTC))}
    meta |= {name: Raw(msgspec.json.encode(value)) for name, value in told.items()}
    return {**body, "meta": Raw(msgspec.json.encode(meta))}
