"""Read the ledger, prices and months."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any
from uuid import UUID

from django.db.models import Max, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone

from billing.models import Adjustment, MonthSpend, Price, UsageHour, UsageRecord
from billing.services.reconciliation_reads import findings_of, newest_finished

_FIELDS = tuple(field.name for field in UsageRecord._meta.fields if field.name != "id")


def usage_of_tenant(tenant_id: UUID) -> Iterator[dict[str, Any]]:
    """Every usage record of a tenant, oldest first, as plain values (times in ISO 8601, UTC)."""
    rows = UsageRecord.objects.filter(tenant_id=tenant_id).order_by("id").values(*_FIELDS)
    for row in rows.iterator(chunk_size=1000):
        yield {name: _plain(value) for name, value in row.items()}


def usage_of_request(tenant_id: UUID | str, request_id: str) -> dict[str, Any] | None:
    """One record by its request id, if it is the tenant's; with what corrections have added to it (`corrected_picos`)."""
    rows = with_corrections(UsageRecord.objects.filter(tenant_id=tenant_id, request_id=request_id))
    found: dict[str, Any] | None = rows.values(*_FIELDS, "corrected_picos").first()
    return None if found is None else found | {"corrected_picos": int(found["corrected_picos"])}


def with_corrections(rows: QuerySet[UsageRecord]) -> QuerySet[Any]:
    """Each with the sum of its adjustments, `corrected_picos`: below zero, it costs less than it was rated."""
    sums = Adjustment.objects.filter(record=OuterRef("pk")).order_by().values("record").annotate(sum=Sum("amount_picos"))
    return rows.annotate(corrected_picos=Coalesce(Subquery(sums.values("sum")), 0))


def requests_of_tenant(
    tenant_id: UUID, *, starts_at: datetime | None = None, ends_at: datetime | None = None, **named: str
) -> QuerySet[UsageRecord]:
    """Those that ended in the half-open range. `named`: model, key, tier, end_state."""
    rows = UsageRecord.objects.filter(tenant_id=tenant_id)
    if starts_at is not None:
        rows = rows.filter(ended_at__gte=starts_at)
    if ends_at is not None:
        rows = rows.filter(ended_at__lt=ends_at)
    return rows.filter(**{"key_id" if name == "key" else name: value for name, value in named.items()})


def prices_in_force(model: str) -> list[Price]:
    """Of each tier (blank: all) the newest that holds now, and those that will hold later; by tier, then time."""
    now = timezone.now()
    kept: list[Price] = []
    holds: dict[str, Price] = {}
    for price in Price.objects.filter(model=model).order_by("effective_from", "version"):
        if price.effective_from <= now:
            holds[price.tier] = price
        else:
            kept.append(price)
    return sorted([*holds.values(), *kept], key=lambda price: (price.tier, price.effective_from, price.version))


def every_price_in_force(models: Sequence[str], *, now: datetime) -> list[Price]:
    """As `prices_in_force`, of these models, in one query; by model."""
    kept: list[Price] = []
    holds: dict[tuple[str, str], Price] = {}
    for price in Price.objects.filter(model__in=models).order_by("effective_from", "version"):
        if price.effective_from <= now:
            holds[price.model, price.tier] = price
        else:
            kept.append(price)
    found = [*holds.values(), *kept]
    return sorted(found, key=lambda price: (price.model, price.tier, price.effective_from, price.version))


def prices_of_models(models: Sequence[str] | None) -> QuerySet[Price]:
    """All versions, newest first; None: of every model."""
    rows = Price.objects.order_by("-id")
    return rows if models is None else rows.filter(model__in=models)


def spent_picos(tenant_id: UUID, month: str) -> int:
    """Pico-dollars of a month, "YYYY-MM" in the tenant's time zone."""
    row = MonthSpend.objects.filter(tenant_id=tenant_id, month=month, key_id="", model="").first()
    return row.amount_picos if row else 0


def spent_by_scope(tenant_id: UUID, month: str, *, scope: str, scope_ids: Sequence[str]) -> int:
    """Pico-dollars of a month, of the whole tenant, of keys (their ids) or of models (their public ids) together."""
    named: dict[str, dict[str, Any]] = {
        "tenant": {"key_id": "", "model": ""},
        "key": {"key_id__in": scope_ids, "model": ""},
        "model": {"key_id": "", "model__in": scope_ids},
    }
    rows = MonthSpend.objects.filter(tenant_id=tenant_id, month=month, **named[scope])
    return rows.aggregate(spent=Sum("amount_picos"))["spent"] or 0


def tenants_with_spend(months: Iterable[str]) -> set[UUID]:
    """Who spent something in any of these months ("YYYY-MM")."""
    rows = MonthSpend.objects.filter(month__in=list(months), key_id="", model="", amount_picos__gt=0)
    return set(rows.values_list("tenant_id", flat=True))


def tenants_that_used(model: str, *, since: datetime) -> set[UUID]:
    rows = UsageHour.objects.filter(model=model, starts_at__gte=since, requests__gt=0)
    return set(rows.values_list("tenant_id", flat=True).distinct())


def last_use_of_keys(*, since: datetime | None) -> dict[str, datetime]:
    """When each key's newest request ended; of the hours from `since` on."""
    rows = UsageHour.objects.all() if since is None else UsageHour.objects.filter(starts_at__gte=since)
    return dict(rows.values_list("key_id").annotate(newest=Max("newest_at")))


def _plain(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    return value.isoformat() if hasattr(value, "isoformat") else value


@dataclass(frozen=True)
class Speed:
    """Of a model's streamed answers."""

    ttft_ms: float | None
    tokens_per_s: float | None
    requests: int


_SPEED_SAMPLE = 2000


def speeds_since(since: datetime) -> dict[str, Speed]:
    """Medians by model over those of the newest 2,000 records that are whole answers and ended since then, in one query."""
    rows = UsageRecord.objects.order_by("-id").values_list(
        "model", "ttft_ms", "total_ms", "completion_tokens", "end_state", "ended_at"
    )[:_SPEED_SAMPLE]
    firsts: dict[str, list[int]] = {}
    paces: dict[str, list[float]] = {}
    for model, ttft_ms, total_ms, tokens, end_state, ended_at in rows:
        if ttft_ms is None or end_state != "done" or ended_at < since:
            continue
        firsts.setdefault(model, []).append(ttft_ms)
        if tokens > 1 and total_ms > ttft_ms:
            paces.setdefault(model, []).append((tokens - 1) * 1000 / (total_ms - ttft_ms))
    return {
        model: Speed(
            ttft_ms=median(values),
            tokens_per_s=median(paces[model]) if model in paces else None,
            requests=len(values),
        )
        for model, values in firsts.items()
    }


def list_prices() -> dict[str, Price]:
    """What holds now for all tiers, by model, in one query."""
    now = timezone.now()
    rows = Price.objects.filter(tier="", effective_from__lte=now).order_by("effective_from", "version")
    return {price.model: price for price in rows}


def spent_by_key(tenant_id: UUID, month: str, key_ids: Sequence[str]) -> dict[str, int]:
    """Pico-dollars of a month, by key."""
    rows = MonthSpend.objects.filter(tenant_id=tenant_id, month=month, key_id__in=key_ids, model="")
    return dict(rows.values_list("key_id", "amount_picos"))


def spend_of_month(tenant_id: UUID, month: str) -> dict[tuple[str, str], int]:
    """Pico-dollars by key id and model; of the whole tenant under two blanks."""
    rows = MonthSpend.objects.filter(tenant_id=tenant_id, month=month)
    return {(key_id, model): picos for key_id, model, picos in rows.values_list("key_id", "model", "amount_picos")}


# How records end, as pages group them.
WENT_WELL = ("done",)
LEFT = ("client_gone_before_first_token", "client_gone_after_first_token")


def first_request_at(tenant_id: UUID, *, without_key: str = "") -> datetime | None:
    """When the hour began in which the first record with another key than this one ended."""
    rows = UsageHour.objects.filter(tenant_id=tenant_id, requests__gt=0).exclude(key_id=without_key).order_by("starts_at")
    found: datetime | None = rows.values_list("starts_at", flat=True).first()
    return found


def has_used_key(tenant_id: UUID, key_id: str) -> bool:
    return UsageHour.objects.filter(tenant_id=tenant_id, key_id=key_id, requests__gt=0).exists()


def newest_use(tenant_id: UUID) -> datetime | None:
    rows = UsageHour.objects.filter(tenant_id=tenant_id).order_by("-starts_at")
    found: datetime | None = rows.values_list("newest_at", flat=True).first()
    return found


@dataclass(frozen=True)
class TenantUse:
    """Of a span of time; `errors`: requests that did not end well."""

    requests: int
    errors: int
    tokens: int
    amount_picos: int


def use_by_tenant(tenant_ids: Sequence[UUID], *, since: datetime) -> dict[UUID, TenantUse]:
    """Of whole hours of UTC, in one query; who used nothing is left out."""
    rows = UsageHour.objects.filter(tenant_id__in=tenant_ids, starts_at__gte=_hour(since))
    return _uses(rows, "tenant_id")


def use_by_model(tenant_id: UUID, *, since: datetime) -> dict[str, TenantUse]:
    """The same of one tenant, by model."""
    return _uses(UsageHour.objects.filter(tenant_id=tenant_id, starts_at__gte=_hour(since)), "model")


def _uses(rows: QuerySet[UsageHour], by: str) -> dict[Any, TenantUse]:
    summed = rows.values_list(by).annotate(
        Sum("requests"), Sum("errors"), Sum("prompt_tokens"), Sum("completion_tokens"), Sum("amount_picos")
    )
    return {
        name: TenantUse(requests=requests, errors=errors, tokens=int(prompt + completion), amount_picos=int(picos))
        for name, requests, errors, prompt, completion, picos in summed
        if requests
    }


def _hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def spent_in_months(month_of_tenant: dict[UUID, str]) -> dict[UUID, int]:
    """Pico-dollars of each tenant in a month of its own, in one query."""
    rows = MonthSpend.objects.filter(
        tenant_id__in=month_of_tenant, month__in=set(month_of_tenant.values()), key_id="", model=""
    )
    found = rows.values_list("tenant_id", "month", "amount_picos")
    return {tenant_id: picos for tenant_id, month, picos in found if month_of_tenant[tenant_id] == month}


def month_spends(tenant_id: UUID, *, at_most: int = 12) -> list[tuple[str, int]]:
    """Month and pico-dollars, newest first."""
    rows = MonthSpend.objects.filter(tenant_id=tenant_id, key_id="", model="").order_by("-month")
    return list(rows.values_list("month", "amount_picos")[:at_most])


@dataclass(frozen=True)
class ReconciliationView:
    """One run, as plain values. `findings`: of each engine's start, those with drift first."""

    started_at: datetime
    finished_at: datetime | None
    is_daily: bool
    is_clean: bool
    unexplained_prompt_tokens: int
    unexplained_completion_tokens: int
    inconsistent_requests: int
    not_counted: int
    findings: list[dict[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        values = {name: _plain(getattr(self, name)) for name in self.__dataclass_fields__}
        findings = [{name: _plain(value) for name, value in each.items()} for each in self.findings]
        return values | {"findings": findings}


def latest_reconciliation() -> ReconciliationView | None:
    """The newest that was finished; None before the first."""
    run = newest_finished()
    if run is None:
        return None
    return ReconciliationView(
        started_at=run.started_at,
        finished_at=run.finished_at,
        is_daily=run.day is not None,
        is_clean=run.is_clean,
        unexplained_prompt_tokens=run.unexplained_prompt_tokens,
        unexplained_completion_tokens=run.unexplained_completion_tokens,
        inconsistent_requests=run.inconsistent_requests,
        not_counted=run.not_counted,
        findings=findings_of(run),
    )
