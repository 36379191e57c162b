"""The operators' pages of corrections: credit taken, requests adjusted, ledger and engines compared."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from billing.models import Adjustment, Grant, Hold, MonthSpend, Reconciliation, UsageRecord, Verdict
from billing.services.ledger import record_usage
from billing.services.reconcile_runs import KIND as RECONCILIATION
from dashboard.services.form_claims import FIELD, new_nonce
from tenants.models import AuditEntry, Tenant
from tests.billing.credit_cast import grant, prepaid
from tests.billing.priced_usage import price, used
from tests.dashboard.operators import client, operator
from tests.dashboard.test_operator_money import fresh, last_action, text_of
from tests.tenants.cast import tenant_with
from tests.workers.broker import Broker
from tests.workers.outbox_work import work

__all__ = ["client", "operator"]  # fixtures
pytestmark = pytest.mark.django_db
AUGUST = datetime(2026, 8, 15, tzinfo=UTC)


@pytest.fixture(autouse=True)
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(monkeypatch)


@pytest.fixture
def acme() -> Tenant:
    """With a request that cost 10 pico-dollars."""
    tenant = tenant_with("acme")
    drafts = [used(tenant, "req_one", AUGUST, tokens=(10, 0, 0), price=price(1, 1, 0, 0))]
    record_usage(drafts=drafts, now=AUGUST)
    return tenant


def take(client: Client, **posted: str) -> Any:
    sent = {"amount_micros": "2", "reason": "a mistake", "grant": "", "reference": "", "confirm": "acme", **posted}
    return client.post("/operator/tenants/acme/debit/", sent, follow=True)


def test_credit_is_taken_once_when_the_tenants_name_is_typed(client: Client) -> None:
    acme = prepaid("acme")
    grant(acme, 10_000_000)
    nonce = new_nonce()
    assert "type acme to confirm" in text_of(take(client, confirm="acm", **{FIELD: nonce}))
    assert "not as this site sent it" in text_of(take(client))
    assert not Hold.objects.exists()
    for _ in range(2):
        assert "is taken from acme" in text_of(take(client, **{FIELD: nonce}))
    assert Hold.objects.get().state == Hold.State.TAKEN
    assert "Credit: $8.00" in text_of(client.get("/operator/tenants/acme/"))
    assert last_action() == ("balance.debit", "operator:operator")
    take(client, **{FIELD: new_nonce()})
    assert Hold.objects.count() == 2, "another form takes again"


def test_what_was_paid_in_advance_is_paid_back_of_its_own_grant(client: Client) -> None:
    acme = prepaid("acme")
    first, paid = grant(acme, 5_000_000, kind="goodwill"), grant(acme, 3_000_000)
    page = client.get("/operator/tenants/acme/").content.decode()
    assert f'value="{paid.id}"' in page and f'value="{first.id}"' not in page
    take(client, grant=str(paid.id), amount_micros="3", **{FIELD: new_nonce()})
    assert Grant.objects.get(id=paid.id).left_picos == 0 and Grant.objects.get(id=first.id).left_picos == 5 * 10**12
    assert last_action() == ("balance.refund", "operator:operator")


def test_more_than_is_left_is_refused_and_nothing_is_taken(client: Client) -> None:
    grant(prepaid("acme"), 1_000_000)
    assert "Only $1.00 of the $2.00 are left" in text_of(take(client, **{FIELD: new_nonce()}))
    assert take(client, amount_micros="-1", **{FIELD: new_nonce()}).status_code == 200
    assert not Hold.objects.exists()


def test_a_request_is_found_and_corrected_once_and_never_below_nothing(client: Client, acme: Tenant) -> None:
    page = text_of(client.get("/operator/adjustments/?q=req_one"))
    assert "$0.00000000001" in page and "acme" in page and "10 input" in page
    assert "No request req_none is in the ledger" in text_of(client.get("/operator/adjustments/?q=req_none"))
    asked = {"amount_usd": "-0.000000000004", "kind": "correction", "reason": "half an answer"}
    for wrong in ({"amount_usd": "-1"}, {"amount_usd": "x"}, {"amount_usd": "0"}, {"kind": "late_record"}, {"reason": ""}):
        refused = client.post("/operator/adjustments/req_one/", fresh({**asked, **wrong}))
        assert refused.status_code == 200 and "field-error" in refused.content.decode(), wrong
    assert not Adjustment.objects.exists()
    sent = fresh(asked)
    assert client.post("/operator/adjustments/req_one/", sent).status_code == 302
    assert "sent already" in text_of(client.post("/operator/adjustments/req_one/", sent))
    assert Adjustment.objects.get().amount_picos == -4
    assert MonthSpend.objects.get(tenant_id=acme.id, key_id="", model="").amount_picos == 6
    page = text_of(client.get("/operator/adjustments/?q=req_one"))
    assert re.search(r"With adjustments \$0\.000000000006", page) and "half an answer" in page
    assert last_action() == ("usage.adjust", "operator:operator")
    assert client.post("/operator/adjustments/req_none/", fresh(asked)).status_code == 404
    assert UsageRecord.objects.get().amount_picos == 10


def test_goodwill_for_nothing_is_taken_off_the_month_that_runs_and_must_be_below_zero(client: Client, acme: Tenant) -> None:
    asked = {"tenant": "acme", "amount_usd": "-2.5", "reason": "an outage"}
    for wrong in ({"tenant": "nobody"}, {"amount_usd": "2.5"}):
        assert client.post("/operator/adjustments/goodwill/", fresh({**asked, **wrong})).status_code == 200
    assert not Adjustment.objects.exists()
    assert client.post("/operator/adjustments/goodwill/", fresh(asked)).status_code == 302
    made = Adjustment.objects.get()
    assert (made.amount_picos, made.kind, made.request_id) == (-25 * 10**11, "goodwill", "")
    assert "−$2.5" in text_of(client.get("/operator/adjustments/"))


def test_ledger_and_engines_are_compared_by_a_worker_when_an_operator_asks(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Nothing was compared yet" in text_of(client.get("/operator/reconciliation/"))
    for _ in range(2):
        client.post("/operator/reconciliation/now/", fresh({}))
    run = Reconciliation.objects.get()
    page = client.get("/operator/reconciliation/")
    assert "running" in text_of(page) and 'hx-trigger="every 3s"' in page.content.decode()
    assert "It is not done yet" in text_of(client.get(f"/operator/reconciliation/{run.id}/"))
    monkeypatch.setattr("billing.services.reconcile_runs.SETTLE", timedelta(0))
    work(RECONCILIATION)
    page = client.get("/operator/reconciliation/")
    assert "clean" in text_of(page) and 'hx-trigger="every 3s"' not in page.content.decode()
    assert "No engine was counted" in text_of(client.get(f"/operator/reconciliation/{run.id}/"))
    assert AuditEntry.objects.filter(action="reconciliation.ask").count() == 1


def test_a_run_shows_of_each_start_what_is_explained_and_what_is_not(client: Client) -> None:
    run = Reconciliation.objects.create(
        started_at=timezone.now(), finished_at=timezone.now(), incarnations=2, unexplained_prompt_tokens=7
    )
    cause = {"count": 3, "low_prompt_tokens": 1000, "high_prompt_tokens": 1200, "low_completion_tokens": 5}
    run.findings.create(
        replica="rep-1",
        replica_epoch=4,
        counted_at=timezone.now(),
        verdict=Verdict.UNEXPLAINED,
        engine_prompt_tokens=1207,
        low_prompt_tokens=1000,
        high_prompt_tokens=1200,
        unexplained_prompt_tokens=7,
        causes={"gateway_lost": {**cause, "high_completion_tokens": 5}},
        inconsistent_requests=["req_one"],
    )
    run.findings.create(replica="rep-2", replica_epoch=1, verdict=Verdict.NOT_COUNTED, reason="its agent is old")
    page = text_of(client.get(f"/operator/reconciliation/{run.id}/"))
    for text in (
        "rep-1 , start 4",
        "Input 1,207 1,000 1,200 +7",
        "gateway lost 3 1,000 to 1,200 5",
        "its agent is old",
        "drift",
    ):
        assert text in page, (text, page)
    assert page.index("rep-1") < page.index("rep-2"), "those with drift first"
    assert client.get(f"/operator/reconciliation/{run.id + 1}/").status_code == 404


def test_a_run_that_was_cut_off_says_so_and_the_next_can_be_asked_for(client: Client) -> None:
    Reconciliation.objects.create(started_at=timezone.now() - timedelta(hours=2), asked_by="operator:x")
    page = client.get("/operator/reconciliation/")
    assert "cut off" in text_of(page) and 'hx-trigger="every 3s"' not in page.content.decode()
    client.post("/operator/reconciliation/now/", fresh({}))
    assert Reconciliation.objects.count() == 2
