"""close_month, invoice_pdf, mark_paid, and what sets accounts and rates: one line each, and errors of one line."""

import json
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from billing.invoice_models import Invoice, Statement
from billing.models import UsageRecord
from billing.services.accounts import billing_account
from billing.services.documents import invoice_pdf
from billing.services.ledger import record_usage
from tenants.models import Tenant
from tenants.services.tenants import create_tenant
from tests.billing.issued import issued
from tests.billing.priced_usage import price, used
from workers.tasks import sweep_statements

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("company")]
LONG_PAST = datetime(2025, 3, 15, tzinfo=UTC)


@pytest.fixture
def acme() -> Tenant:
    return create_tenant(name="acme", actor="test")


def run(*arguments: str) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out, stderr=StringIO())
    return out.getvalue()


def as_json(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json"))


def test_close_month_closes_and_again_changes_nothing(acme: Tenant) -> None:
    record_usage(drafts=[used(acme, "a", LONG_PAST, price=price(1, 10**9, 0, 0))], now=LONG_PAST)
    first, again = as_json("close_month", "2025-03"), as_json("close_month", "2025-03", "--tenant", "acme")
    (row,) = first["statements"]
    assert (row["was"], row["invoice"], row["total"], row["currency"]) == ("closed now", "INV-000001", "0.10", "USD")
    assert again["statements"] == [row | {"was": "closed before"}]
    assert first["failed"] == []


def test_close_month_says_in_one_line_what_was_not_closed(acme: Tenant) -> None:
    record_usage(drafts=[used(acme, "a", LONG_PAST, price=price(1, 10**9, 0, 0))], now=LONG_PAST)
    UsageRecord.objects.update(amount_picos=1)
    with pytest.raises(CommandError, match="1 statements were not closed"):
        run("close_month", "2025-03")
    with pytest.raises(CommandError, match="in the ledger and"):
        run("close_month", "2025-03", "--tenant", "acme")
    with pytest.raises(CommandError, match="YYYY-MM"):
        run("close_month", "March")
    with pytest.raises(CommandError, match="not over"):
        run("close_month", "2999-01", "--tenant", "acme")
    assert not Statement.objects.exists()


def test_invoice_pdf_writes_the_bytes_that_were_issued(acme: Tenant, tmp_path: Path) -> None:
    number, out = str(issued(acme).number), tmp_path / "invoice.pdf"
    assert number in run("invoice_pdf", number, "--out", str(out))
    assert out.read_bytes() == invoice_pdf(number)
    run("invoice_pdf", number, "--out", str(out), "--again")
    assert out.read_bytes() == invoice_pdf(number)
    with pytest.raises(CommandError, match="there is no invoice"):
        run("invoice_pdf", "INV-9", "--out", str(out))
    with pytest.raises(CommandError, match="cannot write"):
        run("invoice_pdf", number, "--out", str(tmp_path / "no" / "such"))


def test_mark_paid_counts_a_transfer(acme: Tenant) -> None:
    number = str(issued(acme).number)
    part = as_json("mark_paid", number, "--reference", "t1", "--amount", "2.50")
    assert part == {"number": number, "state": "open", "counted": "2.50", "due": "7.50", "currency": "USD"}
    assert "0.00 due: paid" in run("mark_paid", number, "--reference", "t2")
    for amount in ("2.505", "x", "NaN", "-1"):
        with pytest.raises(CommandError):
            run("mark_paid", number, "--reference", "t3", "--amount", amount)
    assert Invoice.objects.get().paid_minor == 1_000


def test_accounts_and_rates_are_set(acme: Tenant) -> None:
    run(
        "set_billing_account",
        "acme",
        "--legal-name",
        "Acme GmbH",
        "--address",
        "Weg 1",
        "--address",
        "Hamburg",
        "--country",
        "DE",
    )
    assert billing_account(acme.id).address == ["Weg 1", "Hamburg"]
    assert "Acme GmbH" in run("set_billing_account", "acme")
    assert as_json("set_tax_rate", "DE", "19", "--from", "2026-01-01")["basis_points"] == 1900
    assert as_json("set_exchange_rate", "EUR", "0.92", "--from", "2026-01-01")["rate_nanos"] == 920_000_000
    with pytest.raises(CommandError, match="YYYY-MM-DD"):
        run("set_tax_rate", "DE", "19", "--from", "tomorrow")


def test_beat_closes_what_is_due(acme: Tenant, settings: Any) -> None:
    record_usage(drafts=[used(acme, "a", LONG_PAST, price=price(1, 10**9, 0, 0))], now=LONG_PAST)
    assert "workers.tasks.sweep_statements" in {each["task"] for each in settings.CELERY_BEAT_SCHEDULE.values()}
    sweep_statements()
    sweep_statements()
    assert (Statement.objects.get().month, Statement.objects.get().closed_by) == ("2025-03", "system")
