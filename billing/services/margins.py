"""What is left of revenue after what the machines cost, by model and by tenant.

A model costs the hours its replicas existed (inference.services.uptime) at what an hour cost then (gpu_costs). Over a range
it is spread over the tenants by their share of the model's work: output tokens, and input tokens that were not cached. What a
model costs in a range in which nobody used it is nobody's: idle.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from datetime import datetime

from billing.services.gpu_costs import MachineTime, machine_times
from billing.services.reports import Report, ReportQuery, bounds, report
from inference.services.uptime import uptimes

_NO_TIME = MachineTime(replica_s=0, cost_picos=0, uncosted_s=0)


@dataclass(frozen=True)
class Margin:
    name: str
    """A model's public id, or a tenant's id."""
    revenue_picos: int
    cost_picos: int

    @property
    def margin_picos(self) -> int:
        return self.revenue_picos - self.cost_picos


@dataclass(frozen=True)
class ModelMargin(Margin):
    time: MachineTime


@dataclass(frozen=True)
class Margins:
    models: list[ModelMargin]
    tenants: list[Margin]
    idle_picos: int
    """What models cost that nobody used: of no tenant."""

    @property
    def uncosted_s(self) -> int:
        return sum(each.time.uncosted_s for each in self.models)


def margins(query: ReportQuery, *, now: datetime) -> Margins:
    """Of a range and its filters, whatever it is grouped by. Of OWN calendars machines count by UTC's. Raises InvalidInput."""
    used = report(replace(query, granularity="month", group_by=("model", "tenant"), tenant_id=None))
    starts_at, ends_at = bounds(query)
    times = machine_times(uptimes(starts_at=starts_at, ends_at=ends_at, now=now))
    if query.model:
        times = {model: time for model, time in times.items() if model == query.model}
    return _margins(used, times, str(query.tenant_id) if query.tenant_id else "")


def _margins(used: Report, times: dict[str, MachineTime], only_tenant: str) -> Margins:
    revenue: dict[str, Counter[str]] = defaultdict(Counter)
    work: dict[str, Counter[str]] = defaultdict(Counter)
    for (model, tenant), sums in used.by_group().items():
        revenue[model][tenant] += sums["amount_picos"]
        work[model][tenant] += sums["completion_tokens"] + max(0, sums["prompt_tokens"] - sums["cached_tokens"])
    models, of_tenants, costs, idle_picos = [], Counter[str](), Counter[str](), 0
    for model in sorted({*revenue, *times}):
        time = times.get(model, _NO_TIME)
        shares = spread(time.cost_picos, work[model])
        idle_picos += time.cost_picos - sum(shares.values())
        costs.update(shares)
        of_tenants.update(revenue[model])
        models.append(ModelMargin(model, sum(revenue[model].values()), time.cost_picos, time))
    tenants = [
        Margin(tenant, of_tenants[tenant], costs[tenant])
        for tenant in sorted({*of_tenants, *costs})
        if not only_tenant or tenant == only_tenant
    ]
    return Margins(models=models, tenants=tenants, idle_picos=idle_picos)


def spread(picos: int, work: Counter[str]) -> dict[str, int]:
    """By share, in whole pico-dollars that add up to all of it; nothing where there was no work."""
    total, seen, found = sum(work.values()), 0, {}
    for name in sorted(work):
        if work[name]:
            found[name] = picos * (seen + work[name]) // total - picos * seen // total
            seen += work[name]
    return found
