"""What a running job leaves on its record without changing its state: checkpoints, progress."""

from __future__ import annotations

from datetime import datetime
from random import Random

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from penstock.protocols.ojs.envelope import too_large
from penstock.protocols.ojs.instants import instant_text
from penstock.protocols.ojs.options import OjsOptions
from penstock.protocols.ojs.record import Progress, Record
from penstock.protocols.ojs.refusal import Refusal, wrong_state
from penstock.protocols.ojs.steps import rewritten

__all__ = ["drop_checkpoint", "note_progress", "save_checkpoint", "with_checkpoint"]


def save_checkpoint(
    record: Record, state: Raw, now: datetime, dice: Random, options: OjsOptions
) -> Record | Refusal:
    """Keep ``state`` in place of the last checkpoint; its sequence counts from 1."""
    kept = with_checkpoint(record, state, now, options)
    return kept if isinstance(kept, Refusal) else rewritten(kept, dice)


def with_checkpoint(
    record: Record, state: Raw, now: datetime, options: OjsOptions
) -> Record | Refusal:
    if record.is_terminal:
        return wrong_state("save a checkpoint of", record.id, record.state, "not finished")
    size = len(bytes(state))
    if size > options.limits.max_checkpoint_bytes:
        return too_large("checkpoint", size, options.limits.max_checkpoint_bytes)
    sequence = record.checkpoint_seq + 1
    shown = {"state": state, "sequence": sequence, "created_at": instant_text(now)}
    job = replace(record.job, checkpoint=Raw(msgspec.json.encode(shown)))
    return replace(record, job=job, checkpoint_seq=sequence)


def drop_checkpoint(record: Record, dice: Random) -> Record:
    """Forget the checkpoint; the record itself when there is none."""
    if record.checkpoint_seq == 0:
        return record
    return rewritten(record, dice, job=replace(record.job, checkpoint=UNSET), checkpoint_seq=0)


def note_progress(
    record: Record,
    now: datetime,
    dice: Random,
    *,
    value: float | None = None,
    message: str = "",
    data: Raw | None = None,
) -> Record:
    """Note how far the job is: clamped to 0..1, never lower within an attempt. A job that
    does not run is left as it is."""
    if record.state != "active":
        return record
    before = record.progress
    newest = before.value if before is not None else None
    if value is not None:
        newest = max(min(max(value, 0.0), 1.0), newest or 0.0)
    kept = before.data if before is not None else UNSET
    progress = Progress(
        updated_at=instant_text(now),
        value=newest,
        message=message[:1000] or (before.message if before is not None else ""),
        data=kept if data is None else data,
    )
    return rewritten(record, dice, progress=progress)
