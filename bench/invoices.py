"""Statements and invoices of many tenants: are they the ledger, and how long do they take? On a PostgreSQL of its own.

    python -m bench.invoices [--records 1000000] [--tenants 200]

Records of three models with five price versions each, plans with and without discount, every end state, around the edge of
a month in three time zones. They are priced here, by Python's own whole numbers: statements are held against these sums.
Exits with 1 when one pico-dollar, token or record differs.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "platform"))

from tests.fakes.postgres import postgres_server

MODELS = ("small", "middle", "large")
VERSIONS = 5
ZONES = ("UTC", "America/Los_Angeles", "Pacific/Chatham")
MONTHS = ("2026-11", "2026-12")
STARTS_AT = datetime(2026, 11, 11, tzinfo=UTC)
SPAN_S = 40 * 86_400
EDGE_S = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
CLOSED_AT = datetime(2027, 1, 10, tzinfo=UTC)
ENDS = ("done",) * 16 + ("client_gone_after_first_token", "engine_died", "client_gone_before_first_token", "refused")
TIERS = ("interactive", "standard", "batch")
TARGET_S = 60


@dataclass(frozen=True)
class Customer:
    tenant_id: Any
    zone: str
    edge_s: float
    """Where December begins there."""
    discount_percent: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--tenants", type=int, default=200)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hw-bench-") as home, postgres_server() as url:
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": "headway.settings",
            "HEADWAY_HOME": home,
            "DATABASE_URL": url,
            "HEADWAY_COMPANY_NAME": "Bench",
            "HEADWAY_LOG_LEVEL": "ERROR",
        }
        import django

        django.setup()
        return run(asked.records, asked.tenants)


def run(num_records: int, num_tenants: int) -> int:
    from django.core.management import call_command
    from django.db import connection

    call_command("migrate", verbosity=0)
    customers, prices = make_cast(num_tenants)
    started_s = time.monotonic()
    expected = fill_ledger(customers, prices, num_records)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    print(f"{num_records:,} records of {num_tenants} tenants written in {time.monotonic() - started_s:.1f} s")
    drafted_s = time_drafts(customers)
    cpu_s = time.process_time()
    closed_s = close_months()
    cpu_s = time.process_time() - cpu_s
    wrong = differences(expected)
    pdf_s, num_pdfs = time_documents()
    print(f"next invoice by line, a tenant: {drafted_s * 1000:.1f} ms on average")
    print(f"statements and invoices of all: {closed_s:.1f} s (target {TARGET_S} s), {cpu_s:.1f} CPU s of this process")
    print(f"PDFs: {pdf_s / max(1, num_pdfs) * 1000:.0f} ms each")
    for line in wrong[:20]:
        print(f"DIFFERS: {line}")
    print("invoices = ledger, to the pico-dollar" if not wrong else f"{len(wrong)} differences")
    return 1 if wrong or closed_s > TARGET_S else 0


def make_cast(num_tenants: int) -> tuple[list[Customer], dict[str, list[Any]]]:
    from billing.models import Price
    from tenants.models import Tenant

    tenants = Tenant.objects.bulk_create(
        [Tenant(name=f"t{n}", time_zone=ZONES[n % len(ZONES)]) for n in range(num_tenants)], batch_size=500
    )
    customers = [
        Customer(
            tenant.id,
            tenant.time_zone,
            datetime(2026, 12, 1, tzinfo=ZoneInfo(tenant.time_zone)).timestamp(),
            (0, 0, 10, 33)[n % 4],
        )
        for n, tenant in enumerate(tenants)
    ]
    prices = {
        model: Price.objects.bulk_create(
            [
                Price(
                    model=model,
                    version=version + 1,
                    input_micros=150_001 * (size + 1) + 7 * version,
                    cached_micros=15_003 * (size + 1) + version,
                    output_micros=600_007 * (size + 1) + 11 * version,
                    effective_from=STARTS_AT + timedelta(seconds=SPAN_S * version / VERSIONS),
                )
                for version in range(VERSIONS)
            ]
        )
        for size, model in enumerate(MODELS)
    }
    return customers, prices


def fill_ledger(
    customers: list[Customer], prices: dict[str, list[Any]], num_records: int
) -> dict[tuple[Any, str], Counter[str]]:
    """COPY the records; returns what each tenant's month has: picos, requests that are billed, tokens that are billed."""
    from django.db import connection

    from billing.models import MonthSpend, UsageRecord

    columns = [str(field.column) for field in UsageRecord._meta.concrete_fields if not field.primary_key]
    expected: dict[tuple[Any, str], Counter[str]] = {}
    rng = random.Random(7)
    connection.ensure_connection()
    into = f"COPY {UsageRecord._meta.db_table} ({', '.join(columns)}) FROM STDIN"
    with connection.connection.cursor() as cursor, cursor.copy(into) as copy:
        for n in range(num_records):
            row = make_record(n, rng.choice(customers), prices, rng, expected)
            copy.write_row([row[name] for name in columns])
    MonthSpend.objects.bulk_create(
        [MonthSpend(tenant_id=of, month=month, amount_picos=sums["picos"]) for (of, month), sums in expected.items()]
    )
    return expected


def make_record(
    n: int,
    customer: Customer,
    prices: dict[str, list[Any]],
    rng: random.Random,
    expected: dict[tuple[Any, str], Counter[str]],
) -> dict[str, Any]:
    model, tier, end_state = rng.choice(MODELS), rng.choice(TIERS), rng.choice(ENDS)
    # A tenth of them within two days of the edge, where zones disagree.
    ended_s = EDGE_S + rng.uniform(-86_400, 86_400) if n % 10 == 0 else STARTS_AT.timestamp() + rng.uniform(0, SPAN_S)
    version = min(VERSIONS - 1, int((ended_s - STARTS_AT.timestamp()) * VERSIONS / SPAN_S))
    price, left = prices[model][version], 100 - customer.discount_percent
    prompt, completion = rng.randrange(1, 4_000), rng.randrange(0, 800)
    cached = rng.randrange(0, prompt) if n % 3 == 0 else 0
    is_whole = end_state in ("done", "client_gone_after_first_token")
    is_billed = is_whole or end_state == "engine_died"
    billed = ((prompt - cached) * is_whole, cached * is_whole, completion * is_billed)
    listed = (price.input_micros, price.cached_micros, price.output_micros)
    picos = sum(count * ((each * left + 50) // 100) for count, each in zip(billed, listed, strict=True))
    month = MONTHS[ended_s >= customer.edge_s]
    sums = expected.setdefault((customer.tenant_id, month), Counter())
    sums.update(picos=picos, input=billed[0], cached_input=billed[1], output=billed[2])
    ended_at = datetime.fromtimestamp(ended_s, UTC)
    blank = dict.fromkeys(("version", "pool", "replica", "finish_reason", "route_reason"), "")
    zero = dict.fromkeys(("queue_ms", "total_ms", "resumes", "parks", "journal_sequence", "replica_epoch"), 0)
    return blank | zero | {
        "request_id": f"req-{n}",
        "tenant_id": customer.tenant_id,
        "key_id": "k" * 12,
        "member_id": None,
        "route": "/v1/chat/completions",
        "model": model,
        "tier": tier,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "completion_tokens": completion,
        "usage_source": "engine",
        "ttft_ms": None,
        "end_state": end_state,
        "attempts": 1,
        "is_resumed_exactly": True,
        "price_version": str(price.version),
        "discount_percent": customer.discount_percent,
        "amount_picos": picos,
        "billing_month": month,
        "gateway": "bench",
        "started_at": ended_at,
        "ended_at": ended_at,
        "recorded_at": ended_at,
    }  # fmt: skip


def time_drafts(customers: list[Customer]) -> float:
    """Seconds a tenant, of up to fifty."""
    from billing.services.statements import draft_statement

    some = customers[:50]
    started_s = time.monotonic()
    for customer in some:
        draft_statement(customer.tenant_id, MONTHS[1], now=CLOSED_AT)
    return (time.monotonic() - started_s) / len(some)


def close_months() -> float:
    """Seconds, of all tenants and both months."""
    from billing.services.closing import close_all

    started_s = time.monotonic()
    for month in MONTHS:
        made = close_all(month, actor="bench", now=CLOSED_AT)
        assert not made.failed, next(iter(made.failed.items()))
    return time.monotonic() - started_s


def differences(expected: dict[tuple[Any, str], Counter[str]]) -> list[str]:
    from billing.invoice_models import Invoice, NumberSeries, Statement

    wrong = []
    found = {(each.tenant_id, each.month): each for each in Statement.objects.prefetch_related("lines")}
    for (tenant_id, month), sums in expected.items():
        statement = found.get((tenant_id, month))
        if statement is None:
            wrong.append(f"{tenant_id} {month} has no statement")
            continue
        lines = list(statement.lines.all())
        tokens: Counter[str] = Counter()
        for line in lines:
            tokens[line.token_kind] += line.quantity_tokens or 0
        has = {"picos": sum(line.amount_picos or 0 for line in lines), **{kind: tokens[kind] for kind in tokens if kind}}
        wrong += [
            f"{tenant_id} {month} {name}: {has.get(name, 0)}, not {value}"
            for name, value in sums.items()
            if has.get(name, 0) != value
        ]
        if sum(line.amount_minor for line in lines) != statement.total_minor:
            wrong.append(f"{tenant_id} {month}: the lines do not add up to the total")
        if abs(statement.total_minor * 10**10 - sums["picos"]) > len(lines) * 10**10 // 2:
            wrong.append(f"{tenant_id} {month}: rounded by more than half a cent a line")
    invoices = Invoice.objects.count()
    if sum(row.last_number for row in NumberSeries.objects.all()) != invoices:
        wrong.append("numbers have gaps")
    print(f"{len(found)} statements, {invoices} invoices, {sum(len(each.lines.all()) for each in found.values()):,} lines")
    return wrong


def time_documents() -> tuple[float, int]:
    from billing.invoice_models import Invoice
    from billing.services.documents import invoice_pdf

    numbers = [str(number) for number in Invoice.objects.order_by("id").values_list("number", flat=True)[:20]]
    started_s = time.monotonic()
    for number in numbers:
        invoice_pdf(number)
    return time.monotonic() - started_s, len(numbers)


if __name__ == "__main__":
    sys.exit(main())
