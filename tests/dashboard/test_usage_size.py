"""The usage page over a ledger of a million records, on PostgreSQL (make soak)."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test import Client

from billing.models import TTFT_BUCKETS, UsageHour
from billing.services.usage_slots import ON_TARGET
from tenants.models import Tenant
from tests.tenants.cast import full_tenant

pytestmark = [pytest.mark.django_db, pytest.mark.soak]

MAX_S = 0.1


def fill(tenant: Tenant) -> None:
    """30 days by hours, of 8 keys, 3 models, 2 tiers, 29 records each: the rows such a ledger has."""
    names = [str(field.column) for field in UsageHour._meta.concrete_fields if field.name != "id"]
    first = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=719)
    with connection.cursor() as cursor:
        cursor.execute(
            f"""INSERT INTO {UsageHour._meta.db_table} ({", ".join(names)})
            SELECT %s, %s::timestamptz + n * interval '1 hour', 'key' || k, 7, 'm' || m,
            CASE t WHEN 0 THEN 'standard' ELSE 'batch' END, %s::timestamptz, 29, 0, 100, 10, 50, 70, 29, 800,
            {", ".join("1" for _ in (*TTFT_BUCKETS, *ON_TARGET))}
            FROM generate_series(0, 719) n, generate_series(1, 8) k, generate_series(1, 3) m, generate_series(0, 1) t""",
            [str(tenant.id), first, first],
        )
        cursor.execute(f"ANALYZE {UsageHour._meta.db_table}")


def test_the_usage_page_is_made_within_100_ms_at_a_million_records() -> None:
    assert connection.vendor == "postgresql", "storms run on PostgreSQL"
    tenant, people = full_tenant("acme")
    fill(tenant)
    client, took_ms = Client(), {}
    client.force_login(people["owner"])
    for query in ("range=30d", "range=30d&group=key", "range=7d&granularity=hour", "range=30d&granularity=hour&group=none"):
        times = []
        for _ in range(6):
            started_s = time.perf_counter()
            page = client.get(f"/t/acme/usage/?{query}")
            times.append(time.perf_counter() - started_s)
        assert page.status_code == 200
        took_ms[query] = round(min(times) * 1000)  # others may use the machine
    print(took_ms)  # noqa: T201
    assert max(took_ms.values()) < MAX_S * 1000, took_ms
