"""The usage page: cumulative charts, views that are kept, and the requests behind it as a file."""

import csv
import io
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.test import AsyncClient, Client
from django.utils import timezone

from billing.models import UsageRecord
from billing.services.ledger import record_usage
from dashboard import request_file
from dashboard.models import SavedView
from dashboard.request_file import ROWS_A_READ
from dashboard.services.saved_views import MAX_VIEWS
from dashboard.usage_page import usage_page
from headway.money import PICOS_A_USD, picos_to_usd
from headway.streaming import ROWS_A_PIECE
from tenants.models import Tenant
from tenants.services.keys import revoke_api_key
from tests.dashboard.furnished import MODELS, Furnished, furnish
from tests.inference.gateway.usage_drafts import draft
from tests.tenants.cast import full_tenant

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Furnished:
    return furnish()


def client_of(acme: Furnished, role: str = "owner") -> Client:
    client = Client()
    client.force_login(acme.people[role])
    return client


def rows_of(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode())))


def test_a_cumulative_chart_rises_to_the_total_and_says_nothing_of_what_has_not_begun(acme: Furnished) -> None:
    now = timezone.now()  # the last of the furnished requests has just ended
    asked = {"range": "7d", "granularity": "hour", "group": "none", "metric": "output_tokens"}
    plain, summed = (usage_page(acme.tenant, {**asked, "cumulative": value}, now) for value in ("", "1"))
    values = summed.series[0].values
    begun = [value for value in values if value is not None]
    assert begun == sorted(begun)
    assert begun[-1] == plain.series[0].total == summed.series[0].total == sum(v or 0 for v in plain.series[0].values)
    assert values[len(begun) :] == [None] * sum(start > now for start in summed.starts)
    assert "up to each hour" in summed.chart_title


def test_means_are_not_summed_up(acme: Furnished) -> None:
    page = usage_page(acme.tenant, {"metric": "ttft_ms", "cumulative": "1"}, timezone.now())
    assert not page.query.is_cumulative


def test_a_revoked_key_is_still_listed_and_tagged(acme: Furnished) -> None:
    revoke_api_key(key_id=acme.key.id, actor="test")
    page = client_of(acme).get("/t/acme/usage/?range=30d&group=key").content.decode()
    assert page.count("production backend (revoked)") >= 3  # the filter, the legend, the table


def test_a_range_without_usage_leads_to_the_last_day_that_has_some(acme: Furnished) -> None:
    client = client_of(acme)
    page = client.get("/t/acme/usage/?range=custom&from=2020-01-01&to=2020-01-02").content.decode()
    today = timezone.now().astimezone(UTC).date().isoformat()
    link = f"?range=custom&amp;from={today}&amp;to={today}"
    assert link in page
    assert "No usage in this range" not in client.get(f"/t/acme/usage/{link.replace('&amp;', '&')}").content.decode()


# Views


def test_a_view_is_kept_opened_and_deleted_by_its_member_alone(acme: Furnished) -> None:
    client, other = client_of(acme), client_of(acme, "admin")
    query = f"?range=30d&group=key&metric=errors&cumulative=1&page=9&model={MODELS[1]}"
    saved = client.post("/t/acme/usage/views/", {"name": " errors  by key ", "query": query})
    assert saved["location"] == "/t/acme/usage/?range=30d&metric=errors&group=key&model=org%2Flarge-model&cumulative=1"
    assert "errors by key" in client.get("/t/acme/usage/").content.decode()
    assert "errors by key" not in other.get("/t/acme/usage/").content.decode()
    view = SavedView.objects.for_tenant(acme.tenant).get()
    other.post(f"/t/acme/usage/views/{view.id}/delete/")
    assert SavedView.objects.for_tenant(acme.tenant).count() == 1
    client.post("/t/acme/usage/views/", {"name": "errors by key", "query": "?range=7d"})
    view.refresh_from_db()
    assert view.query == "range=7d"  # replaced, not doubled
    client.post(f"/t/acme/usage/views/{view.id}/delete/")
    assert not SavedView.objects.for_tenant(acme.tenant).exists()


def test_a_view_of_another_organisation_is_not_to_be_seen_or_deleted_there(acme: Furnished) -> None:
    _, people = full_tenant("globex")
    client_of(acme).post("/t/acme/usage/views/", {"name": "mine", "query": "range=7d"})
    stranger = Client()
    stranger.force_login(people["owner"])
    view = SavedView.objects.for_tenant(acme.tenant).get()
    assert "mine" not in stranger.get("/t/globex/usage/").content.decode()
    stranger.post(f"/t/globex/usage/views/{view.id}/delete/")
    assert SavedView.objects.for_tenant(acme.tenant).count() == 1


@pytest.mark.parametrize(
    ("name", "query"), [("", "range=7d"), ("x" * 61, "range=7d"), ("x", "&".join(f"a{n}=1" for n in range(99)))]
)
def test_a_view_without_a_good_name_or_query_is_refused_with_a_reason(acme: Furnished, name: str, query: str) -> None:
    page = client_of(acme).post("/t/acme/usage/views/", {"name": name, "query": query}, follow=True).content.decode()
    assert 'data-kind="error"' in page
    assert not SavedView.objects.for_tenant(acme.tenant).exists()


def test_no_more_views_are_kept_than_a_page_lists(acme: Furnished) -> None:
    client = client_of(acme)
    for number in range(MAX_VIEWS + 1):
        page = client.post("/t/acme/usage/views/", {"name": f"view {number}", "query": ""}, follow=True)
    assert "delete one first" in page.content.decode()
    assert SavedView.objects.for_tenant(acme.tenant).count() == MAX_VIEWS


# The file of requests


def test_the_file_has_as_many_rows_as_the_page_said(acme: Furnished) -> None:
    client = client_of(acme)
    for query in ("range=30d", f"range=30d&model={MODELS[0]}", f"range=7d&key={acme.key.id}", "range=today"):
        page = client.get(f"/t/acme/usage/?{query}").content.decode()
        rows = rows_of(client.get(f"/t/acme/requests.csv?{query}").getvalue())
        assert f"({len(rows)} row" in page, query
        assert rows
    rows = rows_of(client.get("/t/acme/requests.csv?range=30d").getvalue())
    assert rows[-1]["key_name"]
    amounts = dict(UsageRecord.objects.values_list("request_id", "amount_picos"))
    costs = {row["request_id"]: Decimal(row["amount_usd"] or 0) * PICOS_A_USD for row in rows}
    assert costs == {request_id: amounts[request_id] or 0 for request_id in costs}
    assert sum(costs.values()) > 0


def record(tenant: Tenant, ended_at: datetime, number: int) -> None:
    made = draft(f"req_{number:024x}", tenant_id=str(tenant.id), ended_at_s=ended_at.timestamp(), model="m")
    record_usage(drafts=[made])


def test_the_range_is_half_open_in_the_zone_of_the_page(acme: Furnished) -> None:
    """The first instant of the day is in, the first of the next is not: in New York's days."""
    tenant, people = full_tenant("globex")
    tenant.time_zone = "America/New_York"
    tenant.save()
    starts, ends = (datetime(2026, 3, day, 0, 0, tzinfo=UTC) + timedelta(hours=hours) for day, hours in ((8, 5), (9, 4)))
    moments = [starts - timedelta(microseconds=1), starts, ends - timedelta(microseconds=1), ends]  # a day of 23 hours
    for number, at in enumerate(moments):
        record(tenant, at, number)
    client = Client()
    client.force_login(people["owner"])
    address = "/t/globex/requests.csv?range=custom&from=2026-03-08&to=2026-03-08"
    rows = rows_of(client.get(address).getvalue())
    assert [row["request_id"] for row in rows] == [f"req_{number:024x}" for number in (1, 2)]
    assert rows[0]["ended_at (America/New_York)"] == "2026-03-08T00:00:00-05:00"


@pytest.mark.django_db(transaction=True)
async def test_it_is_streamed_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under ASGI, as in production: every row once, also where reads and pieces end and times are equal."""
    num, now = ROWS_A_READ + ROWS_A_PIECE + 7, timezone.now().replace(microsecond=0)

    def made() -> AsyncClient:
        tenant, people = full_tenant("acme")
        common = draft("req_" + "0" * 24, tenant_id=str(tenant.id), model="m")
        values = {
            "tenant_id": tenant.id,
            "key_id": common.key_id,
            "route": "/v1/chat/completions",
            "model": "=1+1",
            "tier": "standard",
            "usage_source": "engine",
            "end_state": "done",
            "gateway": "g",
            "started_at": now,
        }
        rows = [
            UsageRecord(request_id=f"req_{n:024x}", journal_sequence=n, ended_at=now - timedelta(seconds=n // 900), **values)
            for n in range(num)
        ]
        UsageRecord.objects.bulk_create(rows)
        client = AsyncClient()
        client.force_login(people["owner"])
        return client

    client = await sync_to_async(made)()
    response: Any = await client.get("/t/acme/requests.csv?range=7d")
    pieces = [piece async for piece in response.streaming_content]
    await sync_to_async(connections.close_all)()  # of the thread that it was read in
    assert len(pieces) == num // ROWS_A_PIECE + 1
    rows = rows_of(b"".join(pieces))
    assert len(rows) == len({row["request_id"] for row in rows}) == num
    times = [row["ended_at (UTC)"] for row in rows]
    assert times == sorted(times)
    assert rows[0]["model"] == "'=1+1"  # no spreadsheet runs it


def test_more_than_a_file_holds_is_said_with_the_way_out_before_and_after_it_is_asked_for(
    acme: Furnished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_file, "MAX_ROWS", 50)
    client = client_of(acme)
    page = client.get("/t/acme/usage/?range=30d").content.decode()
    assert "200 requests are more than the 50 that a file holds: choose fewer days, one model or one key" in page
    assert "CSV of requests<" not in page
    refused = client.get("/t/acme/requests.csv?range=30d", follow=True)
    assert refused.redirect_chain == [("/t/acme/usage/?range=30d", 302)]
    assert "choose fewer days" in refused.content.decode()


def test_who_may_not_see_requests_gets_no_file_of_them(acme: Furnished) -> None:
    billing = client_of(acme, "billing")
    assert billing.get("/t/acme/requests.csv").status_code == 403
    assert "CSV of requests" not in billing.get("/t/acme/usage/?range=30d").content.decode()


# What it comes to on invoices


def test_months_are_shown_as_they_are_invoiced_to_who_may_see_bills(acme: Furnished) -> None:
    statement, invoice = acme.invoice.statement, acme.invoice
    last = (statement.ends_at - timedelta(days=1)).date()
    address = f"/t/acme/usage/?range=custom&from={statement.month}-01&to={last}"
    shown = client_of(acme).get(address).content.decode()
    assert "As it is invoiced, by billing month" in shown and str(invoice.number) in shown
    assert f"${picos_to_usd(statement.ledger_picos)}" in shown
    for page in (client_of(acme).get(f"{address}&model={MODELS[0]}"), client_of(acme, "viewer").get(address)):
        assert page.status_code == 200 and "As it is invoiced" not in page.content.decode()
    running = client_of(acme, "billing").get("/t/acme/usage/?range=month").content.decode()
    assert "so far" in running
