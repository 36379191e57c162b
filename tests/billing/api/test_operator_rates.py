"""Operators over REST: rates that are set once, requests that are rated again once, the report as a PDF."""

from datetime import UTC, datetime
from typing import Any

import pytest

from billing.account_models import ExchangeRate, TaxRate
from billing.gpu_cost_models import GpuCost
from billing.models import Adjustment, Price
from billing.re_rating_models import ReRating
from billing.services import re_rating, re_rating_runs
from billing.services.ledger import record_usage
from billing.services.rates import exchange_rate_on, tax_rate_on
from inference.models import Model
from tenants.models import AuditEntry
from tenants.services.members import ensure_operator
from tests.billing.issued import issued
from tests.billing.priced_usage import price, used
from tests.tenants.api.cast import Api, code_of
from tests.tenants.cast import tenant_with
from tests.workers.broker import Broker
from tests.workers.outbox_work import work
from workers.models import OutboxEntry

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("company")]
AUGUST = datetime(2026, 8, 15, tzinfo=UTC)
WRONG = [2, "", "-1", "1e9", "1e999999999", "NaN", "Infinity", "１", "0.00000000000001", "1" * 41, None]


@pytest.fixture
def api() -> Api:
    return Api(user=ensure_operator(username="operator", password="x"))


def refused(answer: Any) -> tuple[int, str | None]:
    return answer.status_code, answer.json()["error"]["param"]


def test_a_tax_rate_is_set_for_a_day_once_and_holds(api: Api) -> None:
    asked = {"country": "de", "percent": "19.5", "effective_from": "2026-01-01"}
    made = api.post("operator/tax-rates/", asked)
    assert made.status_code == 201 and made.json()["percent"] == "19.50" and made.json()["name"] == "VAT"
    held = tax_rate_on("DE", AUGUST.date())
    assert held is not None and held.basis_points == 1_950
    assert api.post("operator/tax-rates/", {**asked, "percent": "20"}).status_code == 409
    api.post("operator/tax-rates/", {**asked, "country": "FR"})
    listed = api.get("operator/tax-rates/?country=DE").json()["results"]
    assert [each["country"] for each in listed] == ["DE"]
    assert AuditEntry.objects.filter(action="tax_rate.set", actor="operator:operator").count() == 2
    for wrong in WRONG:
        assert refused(api.post("operator/tax-rates/", {**asked, "country": "AT", "percent": wrong})) == (400, "percent")
    assert refused(api.post("operator/tax-rates/", {**asked, "country": "ZZ"})) == (400, "country")
    assert TaxRate.objects.count() == 2


def test_an_exchange_rate_is_set_for_a_day_once_and_holds(api: Api) -> None:
    asked = {"currency": "EUR", "rate": "0.921000001", "effective_from": "2026-08-01"}
    made = api.post("operator/exchange-rates/", asked)
    assert made.status_code == 201 and made.json()["rate"] == "0.921000001"
    assert exchange_rate_on("EUR", AUGUST.date()) == 921_000_001
    assert api.post("operator/exchange-rates/", asked).status_code == 409
    assert api.get("operator/exchange-rates/?currency=JPY").json()["results"] == []
    for wrong in [*WRONG, "0"]:
        assert refused(api.post("operator/exchange-rates/", {**asked, "currency": "JPY", "rate": wrong})) == (400, "rate")
    assert ExchangeRate.objects.count() == 1


def test_what_machines_cost_is_set_of_a_kind_or_of_a_model(api: Api) -> None:
    Model.objects.create(public_id="tiny")
    of_kind = {"machine_kind": "H100", "usd_an_hour": "2.5", "effective_from": "2026-08-01T00:00:00Z"}
    made = api.post("operator/gpu-costs/", of_kind)
    assert made.status_code == 201 and made.json()["usd_an_hour"] == "2.50"
    assert api.post("operator/gpu-costs/", of_kind).status_code == 409
    assert api.post("operator/gpu-costs/", {"model": "tiny", "usd_an_hour": "1"}).status_code == 201
    assert api.post("operator/gpu-costs/", {"model": "tiny", "machine_kind": "x", "usd_an_hour": "1"}).status_code == 400
    assert api.post("operator/gpu-costs/", {"model": "none", "usd_an_hour": "1"}).status_code == 400
    assert [each["model"] for each in api.get("operator/gpu-costs/").json()["results"]] == ["tiny", ""]
    assert GpuCost.objects.count() == 2


def asked_again(**others: Any) -> dict[str, Any]:
    span = {"starts_at": "2026-08-01T00:00:00Z", "ends_at": "2026-09-01T00:00:00Z"}
    return {"model": "tiny", "price_version": 2, **span, "reason": "the price was wrong", **others}


def test_a_span_is_rated_again_once_for_a_reference(api: Api) -> None:
    for name in ("acme", "globex"):
        tenant = tenant_with(name)
        record_usage(drafts=[used(tenant, name, AUGUST, tokens=(10, 0, 0), price=_price(1, 500_000))], now=AUGUST)
    _price(2, 300_000)
    asked = asked_again(reference="TICKET-1", tenant="acme")
    made = api.post("operator/re-ratings/", asked)
    assert made.status_code == 201
    values = made.json()
    assert (values["requests"], values["adjusted"], values["amount_usd"], values["tenant"]) == (1, 1, "-0.000002", "acme")
    assert values["ended_at"] is not None
    again = api.post("operator/re-ratings/", asked)
    assert again.json() == values and Adjustment.objects.count() == 1
    assert code_of(api.post("operator/re-ratings/", asked_again(reference="TICKET-1"))) == "reference_used"
    both = api.post("operator/re-ratings/", asked_again()).json()
    assert (both["requests"], both["adjusted"], both["tenant"]) == (2, 1, None), "acme's was adjusted already"
    listed = api.get("operator/re-ratings/").json()["results"]
    assert [each["id"] for each in listed] == [both["id"], values["id"]]
    assert api.get(f"operator/re-ratings/{values['id']}/").json() == values


def test_one_that_was_cut_off_is_carried_on_and_tells_all_it_has_changed(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = tenant_with("acme")
    drafts = [used(tenant, f"r{each}", AUGUST, tokens=(10, 0, 0), price=_price(1, 500_000)) for each in range(3)]
    record_usage(drafts=drafts, now=AUGUST)
    _price(2, 300_000)
    monkeypatch.setattr(re_rating, "BATCH", 1)
    whole = re_rating._rate
    batches: list[Any] = []

    def stopped(*args: Any) -> None:
        if len(batches) == 2:
            raise SystemExit("killed")
        batches.append(args)
        whole(*args)

    with monkeypatch.context() as patched:
        patched.setattr(re_rating, "_rate", stopped)
        with pytest.raises(SystemExit):
            api.post("operator/re-ratings/", asked_again(reference="T"))
    cut_off = ReRating.objects.get()
    assert (cut_off.requests, cut_off.adjusted, cut_off.ended_at) == (2, 2, None)
    values = api.post("operator/re-ratings/", asked_again(reference="T")).json()
    assert (values["id"], values["requests"], values["adjusted"], values["amount_usd"]) == (cut_off.id, 3, 3, "-0.000006")
    assert Adjustment.objects.count() == 3


def three_used_and_a_price_cut() -> None:
    tenant = tenant_with("acme")
    drafts = [used(tenant, f"r{each}", AUGUST, tokens=(10, 0, 0), price=_price(1, 500_000)) for each in range(3)]
    record_usage(drafts=drafts, now=AUGUST)
    _price(2, 300_000)


def test_a_large_one_is_a_workers_and_is_asked_for_once(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    Broker(monkeypatch)
    three_used_and_a_price_cut()
    monkeypatch.setattr(re_rating_runs, "MAX_REQUESTS", 2)
    asked = asked_again(reference="T")
    first, second = (api.post("operator/re-ratings/", asked) for _ in range(2))
    assert first.status_code == second.status_code == 201 and first.json() == second.json()
    values = first.json()
    assert (values["requests_total"], values["requests"], values["ended_at"]) == (None, 0, None)
    assert not Adjustment.objects.exists() and OutboxEntry.objects.filter(kind=re_rating_runs.KIND).count() == 1
    work(re_rating_runs.KIND)
    done = api.get(f"operator/re-ratings/{values['id']}/").json()
    assert (done["requests_total"], done["requests"], done["adjusted"], done["amount_usd"]) == (3, 3, 3, "-0.000006")
    assert done["ended_at"] is not None and api.post("operator/re-ratings/", asked).json() == done


def test_what_it_would_change_is_told_by_tenant_and_nothing_is_changed(api: Api) -> None:
    three_used_and_a_price_cut()
    asked = asked_again()
    asked.pop("reason")
    tried = api.post("operator/re-ratings/dry-run/", asked).json()
    line = {"requests": 3, "was_usd": "0.000015", "would_usd": "0.000009", "more_usd": "-0.000006"}
    assert tried == {"rows": [{"tenant": "acme", **line}], "total": line}
    assert not ReRating.objects.exists() and not Adjustment.objects.exists()


def test_what_is_unknown_is_refused_and_changes_nothing(api: Api) -> None:
    three_used_and_a_price_cut()
    for path in ("operator/re-ratings/", "operator/re-ratings/dry-run/"):
        assert refused(api.post(path, asked_again(ends_at="2026-08-01T00:00:00Z"))) == (400, "ends_at")
        assert refused(api.post(path, asked_again(price_version=9))) == (404, "version")
        assert code_of(api.post(path, asked_again(tenant="nobody"))) == "tenant_not_found"
    assert not ReRating.objects.exists() and not Adjustment.objects.exists()


def test_what_is_owed_back_is_recorded_as_paid_out_and_is_among_the_payments(api: Api) -> None:
    invoice = issued(tenant_with("acme"))
    path = f"operator/invoices/{invoice.number}/"
    assert api.post(f"{path}refunds/", {"reference": "B1"}).status_code == 409
    api.post(f"{path}payments/", {"reference": "T1"})
    api.post(f"{path}credit-notes/", {"reason": "x", "lines": [{"position": 1, "amount": "3.00"}]})
    assert api.get(path).json()["due"] == "-3.00"
    assert refused(api.post(f"{path}refunds/", {"reference": "B1", "amount": "3.01"})) == (400, "amount")
    assert refused(api.post(f"{path}refunds/", {"reference": "B1", "paid_on": "2999-01-01"})) == (400, "paid_on")
    made = [api.post(f"{path}refunds/", {"reference": "B1", "amount": "3.00"}) for _ in range(2)]
    assert [each.status_code for each in made] == [201, 201] and made[0].json() == made[1].json()
    listed = api.get(f"{path}payments/").json()["results"]
    assert [(each["reference"], each["amount"]) for each in listed] == [("T1", "10.00"), ("B1", "-3.00")]
    assert (api.get(path).json()["due"], api.get(path).json()["paid"]) == ("0.00", "7.00")


def test_the_report_is_a_pdf_over_rest_too(api: Api) -> None:
    tenant = tenant_with("acme")
    record_usage(drafts=[used(tenant, "a", AUGUST, tokens=(10, 0, 0), price=_price(1, 500_000))], now=AUGUST)
    answer = api.get("operator/reports/pdf/?first=2026-08-01&last=2026-08-31&tenant=acme&zone=own&group=model")
    assert answer.status_code == 200 and answer["content-type"] == "application/pdf"
    assert answer.content.startswith(b"%PDF-") and "headway-report.pdf" in answer["content-disposition"]
    for wrong in ("first=2026-08-01", "zone=Mars", "group=colour", "first=2026-08-02&last=2026-08-01", "colour=red"):
        assert api.get(f"operator/reports/pdf/?{wrong}").status_code == 400, wrong
    assert code_of(api.get("operator/reports/pdf/?tenant=nobody")) == "tenant_not_found"


def _price(version: int, micros: int) -> Any:
    return Price.objects.filter(version=version).first() or price(version, micros, 0, 0)
