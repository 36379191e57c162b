"""What operators do over REST: the same services as their pages, amounts as exact text."""

import csv
import io
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from billing.models import Adjustment, Grant, Hold, MonthSpend, Price, Reconciliation, UsageRecord
from billing.services.closing_runs import KIND as CLOSING
from billing.services.exports import KIND as EXPORT
from billing.services.ledger import record_usage
from billing.services.reconcile_runs import KIND as RECONCILIATION
from headway.money import picos_to_usd
from tenants.models import AuditEntry, Tenant
from tenants.services.members import ensure_operator
from tests.billing.credit_cast import prepaid
from tests.billing.issued import issued
from tests.billing.priced_usage import price, used
from tests.dashboard.furnished import MODELS, Furnished, furnish
from tests.tenants.api.cast import Api, code_of, with_key
from tests.tenants.cast import full_tenant, tenant_with
from tests.workers.broker import Broker
from tests.workers.outbox_work import work

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("company")]
AUGUST = datetime(2026, 8, 15, tzinfo=UTC)


@pytest.fixture(autouse=True)
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(monkeypatch)


@pytest.fixture
def api() -> Api:
    return Api(user=ensure_operator(username="operator", password="x"))


def error_of(answer: Any) -> tuple[int, str, str | None]:
    return answer.status_code, code_of(answer), answer.json()["error"]["param"]


def spent(tenant: Tenant, request_id: str, picos: int, at: datetime = AUGUST) -> None:
    record_usage(drafts=[used(tenant, request_id, at, tokens=(1, 0, 0), price=_priced(picos))], now=at)


def _priced(picos: int) -> Price:
    return Price.objects.filter(model="tiny", input_micros=picos).first() or price(Price.objects.count() + 1, picos, 0, 0)


def test_tenants_are_listed_with_plan_spend_and_balance_in_pages_and_few_queries(api: Api) -> None:
    tenants = [tenant_with(f"tenant-{number}") for number in range(5)]
    now = timezone.now()
    for tenant in tenants:
        spent(tenant, tenant.name, 1_500_000, now)
    paying = prepaid("prepaid-one")
    api.post("operator/tenants/prepaid-one/grants/", {"amount_usd": "2.50", "kind": "prepaid", "reason": "transfer"})
    with CaptureQueriesContext(connection) as few:
        first = api.get("operator/tenants/?page_size=2").json()
    with CaptureQueriesContext(connection) as many:
        whole = api.get("operator/tenants/").json()["results"]
    assert len(many) == len(few)
    assert [each["name"] for each in first["results"]] == ["prepaid-one", "tenant-0"]
    following = first["next"].split("/api/v1/")[1]
    assert [each["name"] for each in api.get(following).json()["results"]] == ["tenant-1", "tenant-2"]
    by_name = {each["name"]: each for each in whole}
    assert by_name["tenant-3"]["month_spend_usd"] == "0.0000015" and not by_name["tenant-3"]["is_prepaid"]
    mine = by_name["prepaid-one"]
    assert (mine["plan"], mine["is_prepaid"], mine["balance_usd"]) == ("prepaid", True, "2.5")
    assert [each["id"] for each in api.get(f"operator/tenants/?q={paying.id}").json()["results"]] == [str(paying.id)]
    assert error_of(api.get("operator/tenants/?q=x&colour=red")) == (400, "invalid_value", "colour")


def test_a_tenant_is_suspended_resumed_and_put_on_a_plan_on_record(api: Api) -> None:
    acme = prepaid("acme")
    path = "operator/tenants/acme/"
    assert error_of(api.post(f"{path}suspend/", {"reason": " "}))[::2] == (400, "reason")
    assert api.post(f"{path}suspend/", {"reason": "abuse"}).json()["suspended_at"]
    assert [each["name"] for each in api.get("operator/tenants/?state=suspended").json()["results"]] == ["acme"]
    assert api.post(f"{path}resume/").json()["suspended_at"] is None
    assert error_of(api.call("PUT", f"{path}plan/", {"plan": "gold"}))[0::2] == (404, "plan")
    assert api.call("PUT", f"{path}plan/", {"plan": "free"}).json()["plan"] == "free"
    acme.refresh_from_db()
    assert acme.plan is not None and acme.plan.name == "free"
    done = AuditEntry.objects.filter(tenant=acme, actor="operator:operator").order_by("id")
    assert list(done.values_list("action", flat=True)) == ["tenant.suspend", "tenant.resume", "tenant.set_plan"]


def test_credit_is_granted_once_for_a_reference_and_taken_through_a_hold(api: Api) -> None:
    acme = prepaid("acme")
    granted = {"amount_usd": "12.000001", "kind": "prepaid", "reason": "transfer", "reference": "BANK-1"}
    first, second = (api.post("operator/tenants/acme/grants/", granted) for _ in range(2))
    assert first.status_code == second.status_code == 201 and first.json() == second.json()
    assert Grant.objects.get().amount_micros == 12_000_001
    assert code_of(api.post("operator/tenants/acme/grants/", {**granted, "amount_usd": "1"})) == "reference_used"
    debit = {"amount_usd": "2", "reason": "a mistake", "reference": "D-1"}
    taken = [api.post("operator/tenants/acme/debits/", debit) for _ in range(2)]
    assert [each.status_code for each in taken] == [201, 201] and taken[0].json()["id"] == taken[1].json()["id"]
    assert (taken[0].json()["state"], taken[0].json()["left_usd"]) == ("taken", "10.000001")
    assert code_of(api.post("operator/tenants/acme/debits/", {"amount_usd": "99", "reason": "x"})) == "balance_too_small"
    paid_back = {"amount_usd": "1", "reason": "paid back", "grant": str(Grant.objects.get().id)}
    assert api.post("operator/tenants/acme/debits/", paid_back).json()["left_usd"] == "9.000001"
    other = tenant_with("globex")
    assert error_of(api.post("operator/tenants/globex/debits/", paid_back)) == (404, "not_found", "grant")
    assert Hold.objects.filter(tenant_id=acme.id).count() == 2 and not Hold.objects.filter(tenant_id=other.id).exists()


@pytest.mark.parametrize("wrong", [2.5, 5, "", "1e999999999", "NaN", "-1", "0.0000001", "1" * 41, None, "ten", "0"])
def test_an_amount_is_exact_text_or_nothing_is_done(api: Api, wrong: Any) -> None:
    tenant_with("acme")
    for path in ("grants", "debits"):
        asked = {"amount_usd": wrong, "kind": "goodwill", "reason": "x"}
        assert error_of(api.post(f"operator/tenants/acme/{path}/", asked))[0] == 400
    assert not Grant.objects.exists() and not Hold.objects.exists()


def test_a_price_is_tried_on_a_month_and_set(api: Api) -> None:
    acme = furnish(num_requests=0)
    spent(tenant_with("globex"), "g1", 7)
    UsageRecord.objects.filter(request_id="g1").update(model=MODELS[0])
    asked = {"model": MODELS[0], "input_usd_per_million": "0.00002", "output_usd_per_million": "4"}
    run = api.post("operator/prices/dry-run/", {**asked, "month": "2026-08"}).json()
    assert (run["requests"], run["was_usd"], run["would_be_usd"]) == (1, "0.000000000007", "0.00000000002")
    assert [(row["tenant"], row["would_be_usd"]) for row in run["rows"]] == [("globex", "0.00000000002")]
    before = Price.objects.count()
    refused = api.post("operator/prices/", asked)
    assert error_of(refused) == (400, "price_jump", "is_confirmed")
    for wrong in ({"model": "none"}, {"tier": "gold"}, {"cached_input_usd_per_million": "9"}, {"output_usd_per_million": 4}):
        assert error_of(api.post("operator/prices/", {**asked, "is_confirmed": True, **wrong}))[0] == 400
    assert Price.objects.count() == before
    made = api.post("operator/prices/", {**asked, "is_confirmed": True})
    assert made.status_code == 201 and made.json()["cached_input_usd_per_million"] == "0.00002"
    listed = api.get(f"operator/prices/?model={MODELS[0]}").json()["results"]
    assert [(each["version"], each["is_in_force"]) for each in listed] == [(2, True), (1, False)]
    assert acme.tenant.name == "acme"


def test_an_invoice_is_paid_in_part_taken_back_in_part_and_then_whole(api: Api) -> None:
    invoice = issued(tenant_with("acme"))
    path = f"operator/invoices/{invoice.number}/"
    assert api.get(path).json() | {"tenant": "acme", "due": "10.00", "state": "open"} == api.get(path).json()
    assert [each["amount"] for each in api.get(f"{path}lines/").json()["results"]] == ["3.00", "7.00"]
    for wrong in ("1.005", "0", "-1", "99", 4, "nan"):
        assert error_of(api.post(f"{path}payments/", {"reference": "T1", "amount": wrong}))[::2] == (400, "amount"), wrong
    paid = [api.post(f"{path}payments/", {"reference": "T1", "amount": "4.00"}) for _ in range(2)]
    assert [each.json()["amount"] for each in paid] == ["4.00", "4.00"]
    assert len(api.get(f"{path}payments/").json()["results"]) == 1
    twice = {"reason": "slow", "lines": [{"position": 1, "amount": "1"}, {"position": 1, "amount": "1"}]}
    assert error_of(api.post(f"{path}credit-notes/", twice)) == (400, "invalid_value", "lines")
    note = api.post(f"{path}credit-notes/", {"reason": "slow", "lines": [{"position": 1, "amount": "1.50"}]})
    assert (note.status_code, note.json()["total"]) == (201, "1.50")
    assert api.get(path).json()["due"] == "4.50"
    assert api.post(f"{path}void/", {"reason": "wrong customer"}).json()["total"] == "8.50"
    shown = api.get(path).json()
    assert (shown["state"], shown["due"], shown["paid"]) == ("paid", "-4.00", "4.00")
    assert len(api.get(f"{path}credit-notes/").json()["results"]) == 2
    assert api.get(f"{path}pdf/").content[:5] == b"%PDF-"


def test_an_invoice_is_written_off_and_lists_are_narrowed(api: Api) -> None:
    first, second = issued(tenant_with("acme")), issued(tenant_with("globex"), month=10)
    written = api.post(f"operator/invoices/{first.number}/write-off/", {"reason": "insolvent"}).json()
    assert (written["state"], written["state_reason"]) == ("uncollectible", "insolvent")
    for query, numbers in {
        "": [second.number, first.number],
        "?state=uncollectible": [first.number],
        "?month=2026-10": [second.number],
        "?tenant=acme": [first.number],
    }.items():
        found = api.get(f"operator/invoices/{query}").json()["results"]
        assert [each["number"] for each in found] == numbers, query
    assert error_of(api.get("operator/invoices/?tenant=nobody"))[0] == 404


def test_a_month_is_closed_by_a_worker_and_watched(api: Api) -> None:
    spent(tenant_with("acme"), "a", 10**12)
    seen = api.get("operator/months/2026-08/").json()
    assert [(each["tenant"], each["spent_usd"], each["is_closed"]) for each in seen["tenants"]] == [("acme", "1", False)]
    assert code_of(api.post("operator/closings/", {"month": "2999-01"})) == "month_not_over"
    runs = [api.post("operator/closings/", {"month": "2026-08"}) for _ in range(2)]
    assert [each.status_code for each in runs] == [202, 202] and runs[0].json()["id"] == runs[1].json()["id"]
    path = f"operator/closings/{runs[0].json()['id']}/"
    assert (api.get(path).json()["state"], api.get(path).json()["tenants_total"]) == ("asked", None)
    work(CLOSING)
    done = api.get(path).json()
    assert (done["state"], done["tenants_done"], done["closed"], done["invoices"]) == ("done", 1, 1, 1)
    assert api.get("operator/months/2026-08/").json()["tenants"][0]["invoice"] == "INV-000001"
    assert len(api.get("operator/closings/").json()["results"]) == 1


def test_reports_are_the_ledger_as_json_and_as_csv(api: Api) -> None:
    for number, name in enumerate(("acme", "globex")):
        tenant = tenant_with(name)
        for day in range(3):
            spent(tenant, f"{name}-{day}", 10**6 + number, AUGUST + timedelta(days=day))
    asked = "first=2026-08-01&last=2026-08-31&group_by=tenant,model"
    shown = api.get(f"operator/reports/usage/?{asked}").json()
    total = picos_to_usd(sum(UsageRecord.objects.values_list("amount_picos", flat=True)))  # type: ignore[arg-type]
    assert (shown["total"]["revenue_usd"], shown["total"]["requests"], len(shown["rows"])) == (total, 6, 6)
    assert {(row["bucket"], row["group"]["tenant"], row["group"]["model"]) for row in shown["rows"][:2]} == {
        ("2026-08-15", "acme", "tiny"),
        ("2026-08-15", "globex", "tiny"),
    }
    file = list(csv.DictReader(io.StringIO(api.get(f"operator/reports/usage/csv/?{asked}").file.decode())))
    assert sum(Decimal(row["revenue_usd"]) for row in file) == Decimal(total)
    months = api.get(
        "operator/reports/usage/?first=2026-08-01&last=2026-08-31&granularity=month&group_by=&tenant=globex"
    ).json()
    assert [(row["bucket"], row["group"], row["revenue_usd"]) for row in months["rows"]] == [("2026-08", {}, "0.000003000003")]
    margins = api.get("operator/reports/margins/?first=2026-08-01&last=2026-08-31&zone=own").json()
    assert [(each["name"], each["revenue_usd"]) for each in margins["models"]] == [("tiny", total)]
    rows = list(
        csv.reader(io.StringIO(api.get("operator/reports/margins/csv/?first=2026-08-01&last=2026-08-31").file.decode()))
    )
    assert rows[0][0] == "of" and {row[0] for row in rows[1:]} == {"model", "tenant", "idle"}


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("zone=Mars", "zone"),
        ("group_by=colour", "group_by"),
        ("group_by=model,model", "group_by"),
        ("first=2026-08-02&last=2026-08-01", "last"),
        ("first=1999-01-01&last=1999-01-02", "first"),
        ("last=9999-12-31", "first"),
        ("first=soon", "first"),
        ("granularity=week", "granularity"),
        ("what=else", "what"),
    ],
)
def test_a_report_that_cannot_be_read_is_refused_by_name(api: Api, query: str, param: str) -> None:
    for path in ("usage/", "usage/csv/"):
        assert error_of(api.get(f"operator/reports/{path}?{query}")) == (400, "invalid_value", param)


def test_exports_are_made_by_a_worker_for_operators_and_for_tenants(api: Api) -> None:
    acme = tenant_with("acme")
    spent(acme, "a1", 5)
    key = with_key(acme, "read_usage")
    asked = key.post("tenants/acme/exports/", {"first": "2026-08-01", "last": "2026-08-31"})
    ledger = api.post("operator/exports/", {"month": "2026-08"})
    assert (asked.status_code, ledger.status_code, asked.json()["state"]) == (202, 202, "asked")
    mine, theirs = f"tenants/acme/exports/{asked.json()['id']}/", f"operator/exports/{ledger.json()['id']}/"
    assert key.get(f"{mine}file/").status_code == api.get(f"{theirs}file/").status_code == 404
    work(EXPORT)
    for caller, path in ((key, mine), (api, theirs)):
        shown = caller.get(path).json()
        assert (shown["state"], shown["rows_done"], shown["rows_total"]) == ("ready", 1, 1)
        file = caller.get(f"{path}file/")
        assert file["content-type"].startswith("text/csv") and b"a1" in file.file
    for path in (f"operator/exports/{asked.json()['id']}/", f"tenants/acme/exports/{ledger.json()['id']}/"):
        assert api.get(path).status_code == 404 and key.get(path).status_code in (403, 404)
    assert error_of(key.post("tenants/acme/exports/", {"first": "2026-08-02", "last": "2026-08-01"}))[::2] == (400, "last")
    assert error_of(api.post("operator/exports/", {"month": "august"}))[::2] == (400, "month")
    for caller, path in ((key, mine), (api, theirs)):
        assert caller.post(f"{path}cancel/").status_code == 409, "it is over"
    again = api.post("operator/exports/", {"month": "2026-08"}).json()["id"]
    assert api.post(f"operator/exports/{again}/cancel/").json()["state"] == "cancelled"
    assert key.post(f"tenants/acme/exports/{again}/cancel/").status_code == 404


def test_a_reconciliation_is_asked_for_once_and_done_by_a_worker(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [api.post("operator/reconciliations/") for _ in range(2)]
    assert [each.status_code for each in runs] == [202, 202] and runs[0].json()["id"] == runs[1].json()["id"]
    assert (runs[0].json()["is_clean"], runs[0].json()["asked_by"]) == (None, "operator:operator")
    monkeypatch.setattr("billing.services.reconcile_runs.SETTLE", timedelta(0))
    assert work(RECONCILIATION) == 1
    shown = api.get(f"operator/reconciliations/{runs[0].json()['id']}/").json()
    assert (shown["is_clean"], shown["findings"]) == (True, [])
    assert Reconciliation.objects.count() == 1
    again = api.post("operator/reconciliations/").json()
    assert again["id"] != runs[0].json()["id"], "the one before is over"
    assert [each["id"] for each in api.get("operator/reconciliations/").json()["results"]] == [again["id"], shown["id"]]


def test_a_request_is_corrected_by_a_line_of_its_own_and_never_below_nothing(api: Api) -> None:
    acme = tenant_with("acme")
    spent(acme, "a1", 10)
    asked = {
        "tenant": "acme",
        "request_id": "a1",
        "amount_usd": "-0.000000000004",
        "kind": "correction",
        "reason": "half an answer",
    }
    made = api.post("operator/adjustments/", asked)
    assert (made.status_code, made.json()["amount_usd"], made.json()["billing_month"]) == (201, "-0.000000000004", "2026-08")
    assert MonthSpend.objects.get(tenant_id=acme.id, key_id="", model="").amount_picos == 6
    assert error_of(api.post("operator/adjustments/", {**asked, "amount_usd": "-1"}))[::2] == (400, "amount")
    for wrong in ({"amount_usd": "-0.0000000000001"}, {"amount_usd": "1e400"}, {"kind": "late_record"}, {"reason": ""}):
        assert error_of(api.post("operator/adjustments/", {**asked, **wrong}))[0] == 400
    assert error_of(api.post("operator/adjustments/", {**asked, "request_id": "zz"})) == (404, "not_found", "request_id")
    goodwill = {"tenant": "acme", "amount_usd": "-2", "kind": "goodwill", "reason": "an outage"}
    assert api.post("operator/adjustments/", goodwill).json()["request_id"] == ""
    assert Adjustment.objects.count() == 2
    for query, number in {"": 2, "?tenant=acme": 2, "?request_id=a1": 1, "?kind=goodwill": 1, "?month=2026-08": 1}.items():
        assert len(api.get(f"operator/adjustments/{query}").json()["results"]) == number, query


def test_what_is_posted_twice_with_a_reference_is_done_once_and_another_body_is_refused(api: Api) -> None:
    acme = tenant_with("acme")
    spent(acme, "a1", 10**12)
    invoice = issued(tenant_with("globex"))
    path = f"operator/invoices/{invoice.number}/"
    line = {"lines": [{"position": 1, "amount": "1"}]}
    posts: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "operator/adjustments/": (
            {"tenant": "acme", "request_id": "a1", "amount_usd": "-0.5", "kind": "correction", "reason": "half"},
            {"amount_usd": "-0.25"},
        ),
        f"{path}credit-notes/": ({"reason": "slow", **line}, {"lines": [{"position": 2, "amount": "1"}]}),
        f"{path}void/": ({"reason": "wrong customer"}, {"reason": "another"}),
    }
    for number, (where, (asked, other)) in enumerate(posts.items()):
        named = {"reference": f"ticket {number}", **asked}
        first, second = (api.post(where, named) for _ in range(2))
        assert (first.status_code, second.status_code, second.json()) == (201, 201, first.json()), where
        assert error_of(api.post(where, named | other)) == (409, "reference_used", "reference"), where
    assert Adjustment.objects.get().reference == "ticket 0"
    assert len(api.get(f"{path}credit-notes/").json()["results"]) == 2
    assert api.get(path).json()["credited"] == "10.00"


def test_operators_see_the_requests_behind_a_line_and_documents_as_customers_do(api: Api) -> None:
    tenant, people = full_tenant("acme")
    invoice, owner = issued(tenant), Api(user=people["owner"])
    note = api.post(f"operator/invoices/{invoice.number}/void/", {"reason": "wrong"}).json()["number"]
    mine, theirs = f"tenants/acme/billing/invoices/{invoice.number}", f"operator/invoices/{invoice.number}"
    for rest in ("/lines/1/requests/", "/csv/", "/pdf/"):
        found = api.get(theirs + rest)
        assert (found.status_code, found.content) == (200, owner.get(mine + rest).content), rest
    noted = api.get(f"operator/credit-notes/{note}/pdf/").content
    assert noted[:5] == b"%PDF-" and noted == owner.get(f"tenants/acme/billing/credit-notes/{note}/pdf/").content
    for missing in (f"{theirs}/lines/9/requests/", "operator/credit-notes/CN-9/pdf/", "operator/invoices/INV-9/csv/"):
        assert api.get(missing).status_code == 404, missing


@pytest.mark.parametrize(
    "month", ["0001-01", "1999-12", "9999-12", "3000-01", "2026-13", "2026-1", "soon", "+2026-1", "２０２６-１１"]
)
def test_a_month_at_the_calendars_edge_is_refused_and_breaks_nothing(api: Api, month: str) -> None:
    tenant_with("acme")
    assert error_of(api.post("operator/closings/", {"month": month}))[::2] == (400, "month")
    assert error_of(api.post("operator/exports/", {"month": month}))[::2] == (400, "month")
    assert api.get(f"operator/months/{quote(month)}/").status_code in (400, 404)


def test_the_furnished_tenants_own_numbers_are_those_of_its_operators(api: Api) -> None:
    acme: Furnished = furnish(num_requests=30)
    owner = Api(user=acme.people["owner"])
    mine = owner.get("tenants/acme/billing/balance/").json()["left_usd"]
    assert api.get("operator/tenants/acme/").json()["balance_usd"] == mine
    theirs = owner.get(f"tenants/acme/billing/invoices/{acme.invoice.number}/").json()
    assert theirs | {"tenant": "acme"} == api.get(f"operator/invoices/{acme.invoice.number}/").json()
