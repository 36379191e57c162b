"""Operators' reports: the page, and the same as files."""

import csv
import io
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from billing.models import UsageRecord
from billing.services.gpu_costs import set_gpu_cost
from billing.services.ledger import record_usage
from dashboard.operator_reports import report_page
from dashboard.report_document import report_document
from headway.money import picos_to_usd
from inference.models import Replica
from tenants.models import User
from tenants.services.members import ensure_operator
from tests.billing.priced_usage import used
from tests.dashboard.furnished import MODELS, Furnished, furnish
from tests.tenants.cast import person, tenant_with

pytestmark = pytest.mark.django_db

MAX_QUERIES = 20
GROUPS = ("tenant", "model", "version", "tier", "tenant_model", "none")
ALL = "range=custom&from=2020-01-01&to=2020-01-02"


@pytest.fixture
def acme() -> Furnished:
    set_gpu_cost(cost_micros=500_000, effective_from=datetime(2020, 1, 1, tzinfo=UTC), actor="test", machine_kind="external")
    furnished = furnish()
    other, now = tenant_with("other"), timezone.now()
    record_usage(
        drafts=[
            used(other, f"other-{n}", now - timedelta(hours=7 * n, seconds=5), model=MODELS[n % 2], amount_picos=10**9 + n)
            for n in range(12)
        ]
    )
    return furnished


@pytest.fixture
def client() -> Client:
    client = Client()
    client.force_login(ensure_operator(username="operator", password="x"))
    return client


def rows_of(response: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(b"".join(response.streaming_content).decode())))


def picos_since(days: int) -> int:
    since = (timezone.now() - timedelta(days=days - 1)).replace(hour=0, minute=0, second=0, microsecond=0)
    return sum(row.amount_picos or 0 for row in UsageRecord.objects.filter(ended_at__gte=since))


def test_pages_open_with_few_queries_and_nothing_inline(acme: Furnished, client: Client) -> None:
    asked = [f"range=30d&group={group}" for group in GROUPS]
    asked += ["", "range=last_month&zone=own", "range=30d&zone=Asia/Kathmandu&metric=requests&granularity=month", ALL]
    asked += ["range=30d&tenant=acme&model=smollm2-135m", "range=custom&from=x&to=y", "zone=Mars/Base", "tenant=nobody"]
    for query in asked:
        with CaptureQueriesContext(connection) as queries:
            response = client.get(f"/operator/reports/?{query}")
        assert response.status_code == 200, query
        assert len(queries) <= MAX_QUERIES, (query, len(queries))
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", response.content.decode()), query
    for query in (
        "range=custom&from=2026-02-01&to=2026-01-01",
        "zone=Mars/Base",
        "tenant=nobody",
        "range=custom&to=2026-01-01",
    ):
        assert 'role="alert"' in client.get(f"/operator/reports/?{query}").content.decode(), query


def test_an_installation_without_anything_says_so(client: Client) -> None:
    page = client.get("/operator/reports/").content.decode()
    assert "Nothing in this range" in page and 'aria-current="page"' in page


def test_nobody_but_an_operator_finds_them(acme: Furnished) -> None:
    for user in (acme.people["owner"], person("stranger")):
        stranger = Client()
        stranger.force_login(user)
        for name in ("reports/", "reports.csv", "reports-margins.csv", "reports.pdf"):
            assert stranger.get(f"/operator/{name}").status_code == 404
            assert Client().get(f"/operator/{name}").status_code == 302


@pytest.mark.parametrize("group", GROUPS)
def test_page_and_file_show_what_the_ledger_holds(acme: Furnished, client: Client, group: str) -> None:
    expected = picos_since(30)
    page = report_page({"range": "30d", "group": group}, timezone.now())
    assert page.total["amount_picos"] == expected > 0
    assert sum(line.sums["amount_picos"] for line in page.lines) == expected
    assert sum(each.total or 0 for each in page.series) == pytest.approx(expected / 10**6)
    rows = rows_of(client.get(f"/operator/reports.csv?range=30d&group={group}"))
    assert sum(Decimal(row["revenue_usd"]) for row in rows) == Decimal(picos_to_usd(expected))
    assert sum(int(row["requests"]) for row in rows) == page.total["requests"]
    if group.startswith("tenant"):
        assert {row["tenant"] for row in rows} == {"acme", "other"}


def test_margins_add_up_on_page_and_file_below_zero_too(acme: Furnished, client: Client) -> None:
    rows = rows_of(client.get("/operator/reports-margins.csv?range=30d"))
    sums = {of: sum(Decimal(row["margin_usd"]) for row in rows if row["of"] == of) for of in ("model", "tenant", "idle")}
    assert sums["model"] == sums["tenant"] + sums["idle"]
    assert any(Decimal(row["replica_hours"]) >= 0 for row in rows if row["of"] == "model")
    set_gpu_cost(cost_micros=10**10, effective_from=datetime(2021, 1, 1, tzinfo=UTC), actor="test", machine_kind="external")
    Replica.objects.update(created_at=timezone.now() - timedelta(days=2))
    rows = rows_of(client.get("/operator/reports-margins.csv?range=30d"))
    assert all(Decimal(row["margin_usd"]) < 0 for row in rows if row["of"] == "model")
    assert "-$" in client.get("/operator/reports/?range=30d").content.decode()


def test_a_filter_in_the_address_holds_for_page_and_files(acme: Furnished, client: Client) -> None:
    query = "range=30d&tenant=other&model=smollm2-135m&group=tenant_model"
    rows = rows_of(client.get(f"/operator/reports.csv?{query}"))
    assert {(row["tenant"], row["model"]) for row in rows} == {("other", "smollm2-135m")}
    page = client.get(f"/operator/reports/?{query}").content.decode()
    assert "other · smollm2-135m" in page and "acme ·" not in page


def test_the_pdf_is_made_of_what_the_page_shows_and_twice_the_same(acme: Furnished, client: Client) -> None:
    response = client.get("/operator/reports.pdf?range=30d&group=tenant_model")
    assert response.content.startswith(b"%PDF-")
    now = timezone.now()
    for asked in ({"range": "30d"}, {"range": "custom", "from": "2020-01-01", "to": "2020-01-02"}):
        page = report_page(asked, now)
        assert report_document(page) == report_document(page)


def test_credits_stand_beside_revenue_for_whole_months_only(acme: Furnished, client: Client) -> None:
    whole = report_page({"range": "last_month", "group": "tenant"}, timezone.now())
    part = report_page({"range": "30d", "group": "tenant"}, timezone.now())
    assert len(whole.credit_months) == 1
    assert part.credit_months == [] or all(line.credit_picos is not None for line in part.lines)


def test_an_operator_who_is_one_no_more_is_refused(acme: Furnished, client: Client) -> None:
    User.objects.filter(username="operator").update(is_superuser=False)
    assert client.get("/operator/reports/").status_code == 404
