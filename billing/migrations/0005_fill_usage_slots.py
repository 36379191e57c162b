from collections import defaultdict
from datetime import UTC, datetime

from django.db import migrations

BOUNDS = (50, 100, 200, 400, 800, 1600, 3200, 6400, 12800)
SUCCESSES = {"done", "client_gone_after_first_token", "client_gone_before_first_token"}
FIELDS = ("tenant_id", "ended_at", "key_id", "member_id", "model", "tier", "end_state", "prompt_tokens", "cached_tokens")
FIELDS += ("completion_tokens", "amount_micros", "ttft_ms")


def fill(apps, _schema_editor):
    """What the ledger held before sums were kept."""
    for name, width_s in (("UsageQuarter", 900), ("UsageHour", 3600)):
        _fill(apps.get_model("billing", "UsageRecord"), apps.get_model("billing", name), width_s)


def _fill(record, slot, width_s):
    sums = defaultdict(lambda: defaultdict(int))
    newest = {}
    for row in record.objects.values(*FIELDS).iterator(chunk_size=2000):
        starts_at = datetime.fromtimestamp(int(row["ended_at"].timestamp()) // width_s * width_s, UTC)
        key = (row["tenant_id"], starts_at, row["key_id"], row["member_id"] or 0, row["model"], row["tier"])
        newest[key] = max(newest.get(key, row["ended_at"]), row["ended_at"])
        into = sums[key]
        into["requests"] += 1
        into["errors"] += row["end_state"] not in SUCCESSES
        into["amount_micros"] += row["amount_micros"] or 0
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
            into[name] += row[name]
        if row["ttft_ms"] is not None:
            into["ttft_count"] += 1
            into["ttft_ms_sum"] += row["ttft_ms"]
            bound = next((bound for bound in BOUNDS if row["ttft_ms"] <= bound), None)
            into[f"ttft_le_{bound}" if bound else "ttft_more"] += 1
    names = ("tenant_id", "starts_at", "key_id", "member_id", "model", "tier")
    numbers = [field.name for field in slot._meta.fields if field.name not in {*names, "id", "newest_at"}]
    slot.objects.bulk_create(
        (
            slot(**dict(zip(names, key)), newest_at=newest[key], **{name: into[name] for name in numbers})
            for key, into in sums.items()
        ),
        batch_size=500,
    )


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0004_usage_slots'),
    ]

    operations = [
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
