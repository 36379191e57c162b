from collections import Counter, defaultdict
from datetime import UTC, datetime

from django.db import migrations
from django.db.models import F, Max, Min

from headway.months import UTC_NAME, month_named, month_of, next_month_name, zone_named

PICOS_A_MICRO = 1_000_000
BOUNDS = (50, 100, 200, 400, 800, 1600, 3200, 6400, 12800)
SUCCESSES = {"done", "client_gone_after_first_token", "client_gone_before_first_token"}
GROUP = ("tenant_id", "starts_at", "key_id", "member_id", "model", "version", "tier")
FIELDS = ("tenant_id", "ended_at", "key_id", "member_id", "model", "version", "tier", "end_state", "prompt_tokens")
FIELDS += ("cached_tokens", "completion_tokens", "amount_picos", "ttft_ms")


def fill(apps, _schema_editor):
    """Micro-dollars are a million pico-dollars; billing months are new; what is summed up is made anew of the records."""
    record = apps.get_model("billing", "UsageRecord")
    zones = dict(apps.get_model("tenants", "Tenant").objects.values_list("id", "time_zone"))
    for tenant_id in record.objects.order_by().values_list("tenant_id", flat=True).distinct():
        _stamp(record.objects.filter(tenant_id=tenant_id), zones.get(tenant_id, UTC_NAME))
    _fill_months(record, apps.get_model("billing", "MonthSpend"))
    for name in ("UsageQuarter", "UsageHour", "UsageDay"):
        _fill_slots(record, apps.get_model("billing", name), zones)


def _stamp(rows, zone):
    first, last = rows.aggregate(first=Min("ended_at"), last=Max("ended_at")).values()
    name, newest = month_of(first, zone).name, month_of(last, zone).name
    while name <= newest:
        month = month_named(name, zone)
        starts_at, ends_at = (datetime.fromtimestamp(at_s, UTC) for at_s in (month.starts_s, month.ends_s))
        its = rows.filter(ended_at__gte=starts_at, ended_at__lt=ends_at)
        its.update(billing_month=name, amount_picos=F("amount_picos") * PICOS_A_MICRO)
        name = next_month_name(name)


def _fill_months(record, month_spend):
    sums = Counter()
    rows = record.objects.exclude(amount_picos=None).exclude(amount_picos=0)
    for row in rows.values_list("tenant_id", "billing_month", "key_id", "model", "amount_picos").iterator(chunk_size=2000):
        tenant_id, month, key_id, model, picos = row
        for scope in {("", ""), (key_id, ""), ("", model)}:
            sums[tenant_id, month, *scope] += picos
    month_spend.objects.all().delete()
    names = ("tenant_id", "month", "key_id", "model")
    made = (month_spend(**dict(zip(names, key)), amount_picos=picos) for key, picos in sums.items())
    month_spend.objects.bulk_create(made, batch_size=500)


def _fill_slots(record, slot, zones):
    sums, newest = defaultdict(Counter), {}
    for row in record.objects.values(*FIELDS).iterator(chunk_size=2000):
        starts_at = _start_of(row["ended_at"], slot.__name__, zones.get(row["tenant_id"], UTC_NAME))
        key = (row["tenant_id"], starts_at, row["key_id"], row["member_id"] or 0, row["model"], row["version"], row["tier"])
        newest[key] = max(newest.get(key, row["ended_at"]), row["ended_at"])
        _add(sums[key], row)
    slot.objects.all().delete()
    numbers = [field.name for field in slot._meta.fields if field.name not in {*GROUP, "id", "newest_at"}]
    slot.objects.bulk_create(
        (
            slot(**dict(zip(GROUP, key)), newest_at=newest[key], **{name: into[name] for name in numbers})
            for key, into in sums.items()
        ),
        batch_size=500,
    )


def _start_of(at, name, zone):
    if name == "UsageDay":
        local = at.astimezone(zone_named(zone) or UTC)
        return local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0).astimezone(UTC)
    width_s = {"UsageQuarter": 900, "UsageHour": 3600}[name]
    return datetime.fromtimestamp(int(at.timestamp()) // width_s * width_s, UTC)


def _add(into, row):
    into["requests"] += 1
    into["errors"] += row["end_state"] not in SUCCESSES
    into["amount_picos"] += row["amount_picos"] or 0
    for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
        into[name] += row[name]
    if row["ttft_ms"] is not None:
        into["ttft_count"] += 1
        into["ttft_ms_sum"] += row["ttft_ms"]
        bound = next((bound for bound in BOUNDS if row["ttft_ms"] <= bound), None)
        into[f"ttft_le_{bound}" if bound else "ttft_more"] += 1


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0007_picos'),
        ('tenants', '0008_names_whatever_their_case'),
    ]

    operations = [
        migrations.RunPython(fill),
    ]
