"""The policy's memory as a row: plain values there, and one writer a look however many beats and workers there are."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from inference.models import Pool
from inference.policy.autoscale import Memory, Sample
from inference.scaling_models import ScaleMemory

MIN_LOOK = timedelta(seconds=2.5)
"""Between two looks at one pool: of two beats that both say it is time, the second is too early."""


def begin_look(*, pool: Pool, now: datetime) -> Memory | None:
    """Take the turn of looking; None: somebody else has. In a transaction, which keeps the row for its length."""
    row, _ = ScaleMemory.objects.get_or_create(pool=pool)
    if row.looked_at is not None and row.looked_at > now - MIN_LOOK:
        return None
    mine = ScaleMemory.objects.filter(pool=pool, looks=row.looks)
    if not mine.update(looks=row.looks + 1, looked_at=now):
        return None
    return memory_of(row.memory)


def keep(*, pool: Pool, memory: Memory) -> None:
    ScaleMemory.objects.filter(pool=pool).update(memory=as_row(memory))


def note_woken(*, pool: Pool, now: datetime) -> None:
    """It went up, and it is busy: not to be put to sleep for what was before."""
    row, _ = ScaleMemory.objects.get_or_create(pool=pool)
    at_s = now.timestamp()
    row.memory = row.memory | {"up_s": at_s, "busy_s": at_s}
    row.save(update_fields=["memory"])


def as_row(memory: Memory) -> dict[str, Any]:
    row = asdict(memory)
    row["work"] = [round(tokens) for tokens in memory.work]
    row["samples"] = [[round(one.at_s, 1), round(one.slots, 3), round(one.kv, 3), one.wanted] for one in memory.samples]
    return row


def memory_of(row: Mapping[str, Any]) -> Memory:
    """What cannot be read is as nothing: another release may have written it."""
    try:
        samples = tuple(Sample(*values) for values in row.get("samples", ()))
        rest = {name: row[name] for name in ("clock", "second", "up_s", "down_s", "busy_s") if name in row}
        return Memory(work=tuple(row.get("work", ())), samples=samples, **rest)
    except TypeError:
        return Memory()
