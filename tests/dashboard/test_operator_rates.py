"""The operators' pages of rates and costs, and of re-ratings."""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from billing.account_models import ExchangeRate, TaxRate
from billing.gpu_cost_models import GpuCost
from billing.models import Adjustment
from billing.re_rating_models import ReRating
from billing.services.gpu_costs import set_gpu_cost
from billing.services.ledger import record_usage
from billing.services.rates import exchange_rate_on, set_exchange_rate, set_tax_rate, tax_rate_on
from billing.services.re_rating_runs import KIND, STUCK
from billing.services.standing import with_standing
from dashboard.operator_rates import KINDS, rate_list
from inference.models import Model
from tenants.models import AuditEntry, Tenant
from tests.billing.priced_usage import price, used
from tests.dashboard.operators import client, operator
from tests.dashboard.test_operator_money import MAX_QUERIES, fresh, last_action, text_of
from tests.tenants.cast import full_tenant, person, tenant_with
from tests.workers.broker import Broker
from tests.workers.outbox_work import work
from workers.models import OutboxEntry

__all__ = ["client", "operator"]  # fixtures
pytestmark = pytest.mark.django_db

AT = datetime(2026, 8, 15, tzinfo=UTC)
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
TAX = {"country": "DE", "name": "MwSt", "percent": "19.5", "effective_from": "2026-01-01"}
EXCHANGE = {"currency": "EUR", "rate": "0.92", "effective_from": "2026-11-01"}
MACHINE = {"machine_kind": "H100", "model": "", "cost_micros": "2.50", "effective_from": "2026-11-01T00:00"}
SPAN = {"starts_at": "2026-08-01T00:00", "ends_at": "2026-09-01T00:00"}
AGAIN = {"model": "tiny", "version": "2", **SPAN, "tenant": "", "reason": "the price was wrong"}
PAGES = [
    "/operator/rates/",
    "/operator/rates/tax/?q=d&standing=past",
    "/operator/rates/tax/?q=nowhere",
    "/operator/rates/exchange/",
    "/operator/rates/machines/?standing=coming",
    "/operator/rates/tax/new/",
    "/operator/rates/exchange/new/?whose=EUR",
    "/operator/rates/machines/new/",
    "/operator/re-ratings/",
    "/operator/re-ratings/?model=tiny",
    "/operator/re-ratings/?model=none",
    "/operator/re-ratings/new/?model=tiny&version=2",
]
POSTS = [
    ("/operator/rates/tax/new/", TAX | {"confirm": "DE"}),
    ("/operator/rates/exchange/new/", EXCHANGE | {"confirm": "EUR"}),
    ("/operator/rates/machines/new/", MACHINE | {"confirm": "H100"}),
    ("/operator/re-ratings/new/", AGAIN | {"confirm": "tiny"}),
    ("/operator/re-ratings/1/again/", {}),
]


@pytest.fixture(autouse=True)
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(monkeypatch)


@pytest.fixture
def tenants() -> list[Tenant]:
    Model.objects.create(public_id="tiny")
    old, made = price(1, 5_000_000, 0, 0), [tenant_with("acme"), tenant_with("globex")]
    counts = (3, 1)
    drafts = [
        used(tenant, f"{tenant.name}-{number}", AT, tokens=(10**6, 0, 0), price=old)
        for tenant, count in zip(made, counts, strict=True)
        for number in range(count)
    ]
    record_usage(drafts=drafts, now=AT)
    price(2, 3_000_000, 0, 0)
    return made


def everything() -> tuple[int, ...]:
    tables = (TaxRate, ExchangeRate, GpuCost, ReRating, Adjustment, AuditEntry, OutboxEntry)
    return tuple(table._default_manager.count() for table in tables)


def test_pages_open_with_few_queries_and_nothing_inline(tenants: list[Tenant], client: Client) -> None:
    def counts() -> list[int]:
        found = []
        for address in PAGES:
            with CaptureQueriesContext(connection) as queries:
                response = client.get(address)
            assert response.status_code == 200, address
            assert len(queries) <= MAX_QUERIES, (address, len(queries))
            assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", response.content.decode()), address
            found.append(len(queries))
        return found

    def furnish(number: int) -> None:
        since = date(2026, 1, number)
        set_tax_rate(country="DE", name="VAT", percent="19", effective_from=since, actor="test")
        set_exchange_rate(currency="EUR", units_per_usd="0.9", effective_from=since, actor="test")
        set_gpu_cost(cost_micros=1, effective_from=AT + timedelta(days=number), machine_kind="H100", actor="test")
        client.post("/operator/re-ratings/new/", fresh(AGAIN) | {"confirm": "tiny", "tenant": ("acme", "globex")[number % 2]})

    furnish(1)
    before = counts()
    for number in (2, 3, 4):
        furnish(number)
    assert ReRating.objects.count() == 4
    assert counts() == before, "more rows take no more queries"
    assert client.get("/operator/rates/other/").status_code == client.get("/operator/rates/other/new/").status_code == 404
    assert client.post("/operator/re-ratings/999999/again/").status_code == 404


def test_nobody_but_an_operator_finds_them_or_changes_anything(tenants: list[Tenant]) -> None:
    _, people = full_tenant("initech")
    before = everything()
    for user in (people["owner"], people["billing"], person("stranger")):
        other = Client()
        other.force_login(user)
        assert {other.get(address).status_code for address in PAGES} == {404}
        assert {other.post(address, fresh(posted)).status_code for address, posted in POSTS} == {404}
    assert {Client().post(address, posted).status_code for address, posted in POSTS} == {302}
    assert everything() == before


def test_a_rate_is_looked_at_and_set_when_its_name_is_typed(client: Client) -> None:
    for address, posted in POSTS[:3]:
        asked, before = {name: value for name, value in posted.items() if name != "confirm"}, everything()
        shown = text_of(client.post(address, asked))
        assert "Nothing is changed yet" in shown and "nothing is set" in shown
        wrong = text_of(client.post(address, fresh(asked) | {"confirm": "wrong"}))
        assert "Nothing was changed" in wrong and everything() == before
        sent = fresh(posted)
        assert client.post(address, sent).status_code == 302
        assert "already" in text_of(client.post(address, sent)), "a second click makes no second one"
    held = tax_rate_on("DE", AT.date())
    assert held is not None and (held.basis_points, held.name) == (1_950, "MwSt")
    assert exchange_rate_on("EUR", NOW.date()) == 920_000_000
    cost = GpuCost.objects.get()
    assert (cost.machine_kind, cost.cost_micros, cost.effective_from) == ("H100", 2_500_000, datetime(2026, 11, 1, tzinfo=UTC))
    assert last_action() == ("gpu_cost.set", "operator:operator")
    assert AuditEntry.objects.filter(action__endswith=".set").count() == 3


def test_a_cost_without_a_time_holds_at_once(client: Client) -> None:
    posted = fresh(MACHINE | {"effective_from": "", "confirm": "H100"})
    assert client.post("/operator/rates/machines/new/", posted).status_code == 302
    assert abs(GpuCost.objects.get().effective_from - timezone.now()) < timedelta(minutes=1)


def test_what_it_changes_is_shown_beside_what_holds_then_and_what_takes_over(client: Client) -> None:
    for day, rate in ((1, "0.9"), (20, "0.95")):
        set_exchange_rate(currency="EUR", units_per_usd=rate, effective_from=date(2026, 10, day), actor="test")
    shown = text_of(client.post("/operator/rates/exchange/new/", EXCHANGE | {"effective_from": "2026-10-10"}))
    assert "0.92 (+2.2 %)" in shown and "2026-10-20, when the next one takes over" in shown and "in the past" in shown
    shown = text_of(client.post("/operator/rates/exchange/new/", EXCHANGE | {"rate": "0.475", "effective_from": "2999-01-01"}))
    assert "0.475 (−50.0 %)" in shown and "another is set" in shown and "in the past" not in shown


@pytest.mark.parametrize(
    ("address", "wrong", "field", "text"),
    [
        ("tax", {"country": "ZZ"}, "country", "Select a valid choice"),
        ("tax", {"country": ""}, "country", "required"),
        ("tax", {"percent": "19,5"}, "percent", "at most two decimals"),
        ("tax", {"percent": "101"}, "percent", "at most two decimals"),
        ("tax", {"percent": "1e1"}, "percent", "at most two decimals"),
        ("tax", {"name": "\u202e"}, "name", "1 to 32 characters"),
        ("tax", {"effective_from": "soon"}, "effective_from", "valid date"),
        ("tax", {"effective_from": "2025-01-01"}, "effective_from", "already"),
        ("exchange", {"currency": "USD"}, "currency", "Select a valid choice"),
        ("exchange", {"rate": "0"}, "rate", "worth something"),
        ("exchange", {"rate": "-1"}, "rate", "at most nine decimals"),
        ("exchange", {"rate": "NaN"}, "rate", "at most nine decimals"),
        ("exchange", {"effective_from": "2025-01-01"}, "effective_from", "already"),
        ("machines", {"machine_kind": ""}, "machine_kind", "name one of them"),
        ("machines", {"model": "tiny"}, "machine_kind", "name one of them"),
        ("machines", {"cost_micros": "10001"}, "cost_micros", "from 0 to 10000"),
        ("machines", {"cost_micros": "0.0000001"}, "cost_micros", "decimal"),
        ("machines", {"effective_from": "2025-01-01T00:00"}, "effective_from", "already"),
    ],
)
def test_what_is_wrong_is_told_beside_its_field_and_nothing_is_set(
    client: Client, address: str, wrong: dict[str, str], field: str, text: str
) -> None:
    Model.objects.create(public_id="tiny")
    day = date(2025, 1, 1)
    set_tax_rate(country="DE", name="VAT", percent="19", effective_from=day, actor="test")
    set_exchange_rate(currency="EUR", units_per_usd="1", effective_from=day, actor="test")
    set_gpu_cost(cost_micros=1, effective_from=datetime(2025, 1, 1, tzinfo=UTC), machine_kind="H100", actor="test")
    right, word = {"tax": (TAX, "DE"), "exchange": (EXCHANGE, "EUR"), "machines": (MACHINE, "H100")}[address]
    before = everything()
    response = client.post(f"/operator/rates/{address}/new/", fresh(right | wrong) | {"confirm": word})
    assert response.status_code == 200 and everything() == before
    assert text in " ".join(response.context["form"].errors[field])
    assert text in text_of(response) and "Nothing is changed yet" not in text_of(response)


def test_the_list_says_what_is_in_force_what_is_coming_and_what_is_past() -> None:
    for day in ("2026-01-01", "2026-11-20", "2026-11-21"):
        set_tax_rate(country="DE", name="VAT", percent="19", effective_from=date.fromisoformat(day), actor="test")
    set_tax_rate(country="AT", name="USt", percent="20", effective_from=date(2025, 1, 1), actor="test")
    rows = rate_list(KINDS["tax"], {}, NOW).rows
    assert [(row.whose, str(row.since), row.standing) for row in rows] == [
        ("AT", "2025-01-01", "in force"),
        ("DE", "2026-11-21", "coming"),
        ("DE", "2026-11-20", "in force"),
        ("DE", "2026-01-01", "past"),
    ]
    for standing, number in (("in force", 2), ("coming", 1), ("past", 1), ("nonsense", 4)):
        assert len(rate_list(KINDS["tax"], {"standing": standing}, NOW).rows) == number
    assert [row.whose for row in rate_list(KINDS["tax"], {"q": "a"}, NOW).rows] == ["AT"]
    for kind, value in ((KINDS["tax"], "20.00 %"), (KINDS["exchange"], None)):
        shown = rate_list(kind, {}, NOW).rows
        assert (shown[0].value if shown else None) == value


def test_what_is_in_force_of_machines_is_by_the_instant_and_by_its_own_scope() -> None:
    Model.objects.create(public_id="H100")
    for hour, scope in ((11, "machine_kind"), (12, "machine_kind"), (13, "machine_kind"), (10, "model")):
        set_gpu_cost(cost_micros=hour, effective_from=NOW.replace(hour=hour), actor="test", **{scope: "H100"})
    found = with_standing(GpuCost.objects.order_by("cost_micros"), ("machine_kind", "model"), NOW)
    assert [(each.cost_micros, each.standing) for each in found] == [
        (10, "in force"),
        (11, "past"),
        (12, "in force"),
        (13, "coming"),
    ]


# Re-ratings


def test_a_span_is_tried_and_a_worker_rates_it_again_once_when_the_model_is_typed(
    tenants: list[Tenant], client: Client
) -> None:
    address, before = "/operator/re-ratings/new/", everything()
    shown = text_of(client.post(address, AGAIN))
    assert re.search(
        r"acme 3 \$15\.00 \$9\.00 -\$6\.00 globex 1 \$5\.00 \$3\.00 -\$2\.00 All 4 \$20\.00 \$12\.00 -\$8\.00", shown
    )
    client.post(address, fresh(AGAIN) | {"confirm": "Tiny"})
    assert everything() == before
    sent = fresh(AGAIN) | {"confirm": "tiny"}
    assert client.post(address, sent).status_code == 302
    assert "already" in text_of(client.post(address, sent))
    listed = client.get("/operator/re-ratings/")
    assert "waiting" in text_of(listed) and 'hx-trigger="every 3s"' in listed.content.decode()
    assert not Adjustment.objects.exists() and ReRating.objects.count() == 1
    work(KIND)
    listed = client.get("/operator/re-ratings/")
    assert re.search(r"done 4 4 -\$8\.00 the price was wrong", text_of(listed)) and "every 3s" not in listed.content.decode()
    assert "operator:operator" in text_of(listed) and last_action() == ("usage.re_rated", "operator:operator")
    assert Adjustment.objects.count() == 4
    assert re.search(r"acme 3 \$9\.00 \$9\.00 \$0\.00", text_of(client.post(address, AGAIN)))


def test_one_of_one_tenant_leaves_the_others(tenants: list[Tenant], client: Client) -> None:
    client.post("/operator/re-ratings/new/", fresh(AGAIN) | {"tenant": "globex", "confirm": "tiny"})
    work(KIND)
    assert [each.tenant_id for each in Adjustment.objects.all()] == [tenants[1].id]
    assert "globex" in text_of(client.get("/operator/re-ratings/"))


@pytest.mark.parametrize(
    ("wrong", "field", "text"),
    [
        ({"model": "none"}, "model", "Select a valid choice"),
        ({"version": "9"}, "version", "no price version 9"),
        ({"version": "0"}, "version", "greater than or equal"),
        ({"starts_at": "soon"}, "starts_at", "valid date"),
        ({"ends_at": "2026-08-01T00:00"}, "ends_at", "ends after it begins"),
        ({"tenant": "nobody"}, "tenant", "nobody"),
        ({"reason": " "}, "reason", "required"),
    ],
)
def test_what_is_wrong_of_a_re_rating_is_told_beside_its_field(
    tenants: list[Tenant], client: Client, wrong: dict[str, str], field: str, text: str
) -> None:
    before = everything()
    for more in ({}, {"confirm": "tiny"}):
        response = client.post("/operator/re-ratings/new/", fresh(AGAIN | wrong | more))
        assert text in " ".join(response.context["form"].errors[field])
        assert text in text_of(response)
    assert everything() == before


def test_one_that_was_cut_off_says_so_and_is_carried_on(tenants: list[Tenant], client: Client) -> None:
    client.post("/operator/re-ratings/new/", fresh(AGAIN) | {"confirm": "tiny"})
    OutboxEntry.objects.all().delete()
    run = ReRating.objects.get()
    assert "Carry on" not in text_of(client.get("/operator/re-ratings/"))
    client.post(f"/operator/re-ratings/{run.id}/again/")
    assert not OutboxEntry.objects.exists(), "somebody may be at it"
    ReRating.objects.update(created_at=timezone.now() - STUCK - timedelta(seconds=1))
    shown = client.get("/operator/re-ratings/")
    assert "cut off" in text_of(shown) and "every 3s" not in shown.content.decode()
    for _ in range(2):
        client.post(f"/operator/re-ratings/{run.id}/again/")
    assert OutboxEntry.objects.filter(kind=KIND).count() == 1
    work(KIND)
    assert "done" in text_of(client.get("/operator/re-ratings/")) and Adjustment.objects.count() == 4


def test_a_price_leads_to_rating_again_by_it(tenants: list[Tenant], client: Client) -> None:
    assert "/operator/re-ratings/new/?model=tiny&amp;version=2" in client.get("/operator/prices/").content.decode()
    form: Any = client.get("/operator/re-ratings/new/?model=tiny&version=2").context["form"]
    assert (form["model"].value(), form["version"].value()) == ("tiny", "2")


@pytest.mark.parametrize("year", ["0001-01-01", "9999-12-31"])
def test_the_calendars_ends_are_days_like_others(tenants: list[Tenant], client: Client, year: str) -> None:
    for address, posted in POSTS[:3]:
        at = f"{year}T23:59" if "machines" in address else year
        assert client.post(address, fresh(posted | {"effective_from": at})).status_code == 302, address
        assert client.get(address.removesuffix("new/")).status_code == 200
        assert client.post(address, fresh(posted)).status_code == 302, "beside it"
    span = {"starts_at": "0001-01-01T00:00", "ends_at": "9999-12-31T23:59"}
    assert client.post("/operator/re-ratings/new/", fresh(AGAIN | span | {"confirm": "tiny"})).status_code == 302
    work(KIND)
    assert Adjustment.objects.count() == 4 and client.get("/operator/re-ratings/").status_code == 200
