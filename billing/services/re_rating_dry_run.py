"""What rating a span of requests again would change, by tenant: exactly what the run would do now, and nothing is changed."""

from collections import Counter
from dataclasses import dataclass
from uuid import UUID

from django.db.models import QuerySet, Sum

from billing.models import Adjustment, AdjustmentKind, Price, UsageRecord
from billing.services.price_dry_run import billable, cost_of
from billing.services.rating import amount_of, unit_price
from billing.services.re_rating import Span, raise_by, rows_of_span, sums_by_record

RECORDS_A_READ = 1000


@dataclass(frozen=True, slots=True)
class ReRatingRow:
    tenant_id: UUID
    requests: int
    was_picos: int
    """What they cost now, with all adjustments."""
    would_picos: int


def dry_run_re_rating(span: Span) -> list[ReRatingRow]:
    """Of tenants with requests in it, those that it changes most first. Raises NotFound, InvalidInput."""
    price, rows = rows_of_span(span)
    requests, was, more = Counter[UUID](), Counter[UUID](), Counter[UUID]()
    for line in billable(rows):
        tenant_id, before = line["tenant_id"], int(line["was"] or 0)
        requests[tenant_id] += line["requests"]
        was[tenant_id] += before
        more[tenant_id] += cost_of(price, line) - before
    adjusted = Adjustment.objects.filter(record__in=rows.values("id")).values_list("tenant_id", "kind")
    for tenant_id, kind, picos in adjusted.annotate(sum=Sum("amount_picos")).order_by():
        was[tenant_id] += int(picos)
        more[tenant_id] -= int(picos) if kind == AdjustmentKind.RE_RATE else 0
    more.update(_kept_from_below_nothing(price, rows))
    found = [ReRatingRow(each, requests[each], was[each], was[each] + more[each]) for each in requests]
    return sorted(found, key=lambda row: (-abs(row.would_picos - row.was_picos), row.tenant_id))


def _kept_from_below_nothing(price: Price, rows: QuerySet[UsageRecord]) -> Counter[UUID]:
    """Sums say what tokens cost; what was corrected or given besides may not take a single request below nothing."""
    kept, last = Counter[UUID](), 0
    corrected = Adjustment.objects.exclude(kind=AdjustmentKind.RE_RATE).values("record_id")
    rows = rows.filter(id__in=corrected).order_by("id")
    while records := list(rows.filter(id__gt=last)[:RECORDS_A_READ]):
        ids, last = [record.id for record in records], records[-1].id
        rated, net = sums_by_record(ids, kind=AdjustmentKind.RE_RATE), sums_by_record(ids)
        for record in records:
            wanted = amount_of(record.end_state, record, unit_price(price, record.discount_percent))
            before, of_rating = record.amount_picos or 0, rated.get(record.id, 0)
            more = raise_by(wanted=wanted, before=before, rated=of_rating, net=net.get(record.id, 0))
            kept[record.tenant_id] += more - (wanted - before - of_rating)
    return kept
