from collections import Counter, defaultdict
from datetime import UTC, datetime

from django.db import migrations

from headway.months import UTC_NAME, day_start

TTFT_TARGET_MS, GAP_TARGET_MS, QUARTER_S, HOUR_S = 500, 50, 900, 3600
GROUP = ("tenant_id", "starts_at", "key_id", "member_id", "model", "version", "tier")
NAMES = ("ttft_on_target", "gap_count", "gap_on_target")
FIELDS = ("tenant_id", "ended_at", "key_id", "member_id", "model", "version", "tier")
FIELDS += ("ttft_ms", "total_ms", "completion_tokens")
ROWS_AT_ONCE = 500


def fill(apps, _schema_editor):
    """Of what was in the ledger before targets were counted: its records are read once, and added to quarters; these make
    hours and days."""
    quarters = _by_quarter(apps.get_model("billing", "UsageRecord"))
    zones = dict(apps.get_model("tenants", "Tenant").objects.values_list("id", "time_zone"))
    starts = {
        "UsageQuarter": lambda at, _tenant_id: at,
        "UsageHour": lambda at, _tenant_id: _floor(at, HOUR_S),
        "UsageDay": lambda at, tenant_id: day_start(at, zones.get(tenant_id, UTC_NAME)),
    }
    for name, start_of in starts.items():
        sums = defaultdict(Counter)
        for (tenant_id, at, *rest), numbers in quarters.items():
            sums[tenant_id, start_of(at, tenant_id), *rest].update(numbers)
        _write(apps.get_model("billing", name), sums)


def _by_quarter(record):
    sums = defaultdict(Counter)
    for row in record.objects.exclude(ttft_ms=None).values(*FIELDS).iterator(chunk_size=2000):
        starts_at = _floor(row["ended_at"], QUARTER_S)
        into = sums[
            row["tenant_id"], starts_at, row["key_id"], row["member_id"] or 0, row["model"], row["version"], row["tier"]
        ]
        into["ttft_on_target"] += row["ttft_ms"] <= TTFT_TARGET_MS
        gaps = row["completion_tokens"] - 1
        if gaps > 0:
            into["gap_count"] += 1
            into["gap_on_target"] += row["total_ms"] - row["ttft_ms"] < GAP_TARGET_MS * gaps
    return sums


def _write(slot, sums):
    changed = []
    for row in slot.objects.filter(ttft_count__gt=0).iterator(chunk_size=2000):
        numbers = sums.get(tuple(getattr(row, name) for name in GROUP), {})
        for name in NAMES:
            setattr(row, name, numbers.get(name, 0))
        changed.append(row)
        if len(changed) == ROWS_AT_ONCE:
            slot.objects.bulk_update(changed, NAMES)
            changed = []
    slot.objects.bulk_update(changed, NAMES)


def _floor(at, width_s):
    return datetime.fromtimestamp(int(at.timestamp()) // width_s * width_s, UTC)


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0019_reports"),
        ("tenants", "0013_balance_alerts"),
    ]

    operations = [
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
