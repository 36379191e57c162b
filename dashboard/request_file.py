"""The requests of a range as a file: what the usage page counts, one line each, oldest first."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet

from billing.selectors import requests_of_tenant, with_corrections
from billing.services.usage_series import UsageQuery as SeriesQuery
from billing.services.usage_series import aligned, usage_series
from dashboard.request_log import names_of_keys
from dashboard.usage_query import UsageQuery, usage_query
from headway.errors import InvalidInput
from headway.money import Usd
from tenants.selectors import keys_of_tenant

MAX_ROWS = 200_000
ROWS_A_READ = 2000
_FIELDS = (
    "ended_at",
    "started_at",
    "request_id",
    "model",
    "version",
    "key_id",
    "member_id",
    "tier",
    "route",
    "end_state",
    "finish_reason",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "queue_ms",
    "ttft_ms",
    "total_ms",
    "attempts",
    "usage_source",
    "amount_picos",
)
_NAMES = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens", "end_state": "ended"}


def head(query: UsageQuery) -> list[str]:
    """Times are those of the zone, with their offset."""
    names = [_NAMES.get(name, name) for name in _FIELDS]
    names[0], names[1] = f"ended_at ({query.zone_name})", f"started_at ({query.zone_name})"
    return [*names[:-1], "amount_usd", "key_name", "corrections_usd"]


def num_requests(tenant: Any, query: UsageQuery) -> int:
    """Of the range, the model and the key, from the sums that the ledger keeps: as quick for a million as for one."""
    filters = tuple((name, value) for name, value in (("model", query.model), ("key", query.key)) if value)
    asked = SeriesQuery(query.start, query.end, query.zone_name, "day", "", filters)
    return sum(bucket.sums["requests"] for bucket in usage_series(tenant.id, aligned(asked)).buckets)


def too_many(number: int) -> str:
    """What to say when a file has no room for them; a blank when it has."""
    if number <= MAX_ROWS:
        return ""
    return f"{number:,} requests are more than the {MAX_ROWS:,} that a file holds: choose fewer days, one model or one key"


def request_rows(tenant: Any, asked: Mapping[str, str], now: datetime) -> tuple[UsageQuery, Iterator[list[Any]]]:
    """Read while they are taken; what ends after `now` is in the next file. Raises InvalidInput where there are too many."""
    query = usage_query(asked, tenant.time_zone, now)
    query = replace(query, end=min(query.end, now))
    problem = query.problem or too_many(num_requests(tenant, query))
    if problem:
        raise InvalidInput(problem)
    return query, _rows(tenant, query)


def _rows(tenant: Any, query: UsageQuery) -> Iterator[list[Any]]:
    key_names = names_of_keys(list(keys_of_tenant(tenant).only("id", "name", "revoked_at").select_related(None)))
    named = {name: value for name, value in (("model", query.model), ("key", query.key)) if value}
    rows = with_corrections(requests_of_tenant(tenant.id, starts_at=query.start, ends_at=query.end, **named))
    rows = rows.order_by("ended_at", "id")
    last: tuple[datetime, int] | None = None
    while found := list(_after(rows, last).values_list(*_FIELDS, "corrected_picos", "id")[:ROWS_A_READ]):
        for ended_at, started_at, *values, picos, corrected, _ in found:
            times = [at.astimezone(query.zone).isoformat() for at in (ended_at, started_at)]
            amounts = [Usd(number) if number is not None else "" for number in (picos, corrected)]
            yield [*times, *values, amounts[0], key_names.get(values[3], ""), amounts[1]]
        last = (found[-1][0], found[-1][-1])


def _after(rows: QuerySet[Any], last: tuple[datetime, int] | None) -> QuerySet[Any]:
    if last is None:
        return rows
    at, row_id = last
    return rows.filter(Q(ended_at__gt=at) | Q(ended_at=at, id__gt=row_id), ended_at__gte=at)
