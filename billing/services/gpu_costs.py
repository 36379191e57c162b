"""What machines cost by the hour, as configured, and what a time of theirs has cost. Append-only, each from an instant on."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from billing.gpu_cost_models import GpuCost
from headway.errors import Conflict, InvalidInput
from headway.money import MICROS_A_USD, PICOS_A_MICRO
from inference.selectors import has_model
from inference.services.uptime import Uptime
from tenants.services.audit import record_audit

MAX_COST_MICROS = 10_000 * MICROS_A_USD
US_AN_HOUR = 3_600_000_000


@dataclass(frozen=True)
class MachineTime:
    """Of one model's replicas."""

    replica_s: int
    cost_picos: int
    uncosted_s: int
    """Of it, for which no cost was set: the cost lacks these."""


def check_gpu_cost(*, cost_micros: int, effective_from: datetime, machine_kind: str = "", model: str = "") -> GpuCost:
    """What `set_gpu_cost` would add, not stored. Raises as it does."""
    machine_kind = machine_kind.strip()
    if bool(machine_kind) == bool(model):
        raise InvalidInput("a cost is of a kind of machine or of a model: name one of them", param="machine_kind")
    if len(machine_kind) > 100 or not machine_kind.isprintable():
        raise InvalidInput("a kind of machine has at most 100 printable characters", param="machine_kind")
    if model and not has_model(model):
        raise InvalidInput(f"there is no model {model!r}", param="model")
    if not 0 <= cost_micros <= MAX_COST_MICROS:
        raise InvalidInput(f"a cost is from 0 to {MAX_COST_MICROS // MICROS_A_USD} US dollars an hour", param="cost")
    if GpuCost.objects.filter(machine_kind=machine_kind, model=model, effective_from=effective_from).exists():
        raise _is_set(model or machine_kind, effective_from)
    return GpuCost(machine_kind=machine_kind, model=model, cost_micros=cost_micros, effective_from=effective_from)


def set_gpu_cost(*, cost_micros: int, effective_from: datetime, actor: str, machine_kind: str = "", model: str = "") -> GpuCost:
    """Of an hour of one replica, on a kind of machine or of a model. Raises InvalidInput; Conflict: that instant has one."""
    row = check_gpu_cost(cost_micros=cost_micros, effective_from=effective_from, machine_kind=machine_kind, model=model)
    try:
        with transaction.atomic():
            row.save(force_insert=True)
            after = {"cost_micros": cost_micros, "effective_from": effective_from.isoformat()}
            record_audit(actor=actor, action="gpu_cost.set", target=row.model or row.machine_kind, after=after)
    except IntegrityError:
        raise _is_set(row.model or row.machine_kind, effective_from) from None
    return row


def _is_set(whose: str, since: datetime) -> Conflict:
    return Conflict(f"{whose} has a cost from {since} on already; costs are never changed", param="effective_from")


def gpu_costs() -> list[GpuCost]:
    """By scope, then time."""
    return list(GpuCost.objects.order_by("model", "machine_kind", "effective_from"))


def every_gpu_cost() -> QuerySet[GpuCost]:
    return GpuCost.objects.all()


def machine_times(times: Iterable[Uptime]) -> dict[str, MachineTime]:
    """By model. Each model's cost is rounded (half up, to a pico-dollar) once."""
    by_model: dict[str, list[GpuCost]] = {}
    by_kind: dict[str, list[GpuCost]] = {}
    for row in gpu_costs():
        (by_model.setdefault(row.model, []) if row.model else by_kind.setdefault(row.machine_kind, [])).append(row)
    sums: dict[str, list[int]] = {}
    for time in times:
        into = sums.setdefault(time.model, [0, 0, 0])
        for length_us, cost_micros in _pieces(time, by_model.get(time.model, []), by_kind.get(time.machine_kind, [])):
            into[0] += length_us
            into[1] += length_us * (cost_micros or 0)
            into[2] += 0 if cost_micros is not None else length_us
    return {model: _machine_time(*numbers) for model, numbers in sums.items()}


def _machine_time(length_us: int, micros_us: int, uncosted_us: int) -> MachineTime:
    picos = (2 * micros_us * PICOS_A_MICRO + US_AN_HOUR) // (2 * US_AN_HOUR)
    return MachineTime(round(length_us / 1_000_000), picos, round(uncosted_us / 1_000_000))


def _pieces(time: Uptime, of_model: list[GpuCost], of_kind: list[GpuCost]) -> Iterable[tuple[int, int | None]]:
    """Microseconds, and the cost that held in them; None: none was set."""
    changes = {row.effective_from for row in (*of_model, *of_kind) if time.starts_at < row.effective_from < time.ends_at}
    bounds = [time.starts_at, *sorted(changes), time.ends_at]
    for start, end in pairwise(bounds):
        yield (end - start) // timedelta(microseconds=1), _cost_at(start, of_model, of_kind)


def _cost_at(at: datetime, of_model: list[GpuCost], of_kind: list[GpuCost]) -> int | None:
    for rows in (of_model, of_kind):
        held = [row.cost_micros for row in rows if row.effective_from <= at]
        if held:
            return held[-1]
    return None
