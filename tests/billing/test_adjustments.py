"""What a request cost is corrected by a further line, and every sum says so at once."""

from datetime import UTC, datetime
from typing import Any

import pytest

from billing.errors import ReferenceUsed
from billing.models import Adjustment, MonthSpend, UsageRecord
from billing.selectors import spent_picos
from billing.services.adjustments import adjust_usage, net_picos
from billing.services.ledger import record_usage
from billing.services.open_months import close_month
from billing.services.usage_series import UsageQuery, aligned, usage_series
from headway.errors import HeadwayError, InvalidInput, NotFound
from inference.models import ControlChange
from tenants.models import AuditEntry, Tenant
from tenants.services.tenants import create_tenant
from tests.billing.test_usage_slots import assert_equal
from tests.inference.gateway.usage_drafts import draft
from tests.tenants.test_at_once import at_once

pytestmark = pytest.mark.django_db
NOVEMBER = datetime(2026, 11, 15, 12, tzinfo=UTC)
DECEMBER = datetime(2026, 12, 2, tzinfo=UTC)


@pytest.fixture
def acme() -> Tenant:
    return create_tenant(name="acme", actor="test")


def used(tenant: Tenant, request_id: str = "r1", picos: int | None = 1_000, end_state: str = "done", **fields: Any) -> None:
    common = {"tenant_id": str(tenant.id), "ended_at_s": NOVEMBER.timestamp(), "price_version": "1", "version": "v1"}
    record_usage(drafts=[draft(request_id, end_state, **(common | {"amount_picos": picos} | fields))], now=DECEMBER)


def adjusted(tenant: Tenant, picos: int, request_id: str | None = "r1", **changes: Any) -> Adjustment:
    given: dict[str, Any] = {
        "kind": "correction",
        "reason": "an engine counted wrong",
        "actor": "user:ann",
        "now": DECEMBER,
    } | changes
    return adjust_usage(tenant_id=tenant.id, request_id=request_id, amount_picos=picos, **given)


def shown(tenant: Tenant, granularity: str) -> int:
    query = UsageQuery(NOVEMBER.replace(day=1), NOVEMBER.replace(day=30), "UTC", granularity)
    if granularity == "minute":
        query = UsageQuery(
            NOVEMBER, NOVEMBER.replace(hour=13), "UTC", granularity, "model", (("model", "m"), ("tier", "standard"))
        )
    amount: int = usage_series(tenant.id, aligned(query)).totals()["amount_picos"]
    return amount


def test_a_correction_is_in_every_sum_and_the_record_stays(acme: Tenant) -> None:
    used(acme)
    adjustment = adjusted(acme, -400)
    record = UsageRecord.objects.get()
    assert (record.amount_picos, net_picos(record)) == (1_000, 600)
    assert (adjustment.billing_month, adjustment.usage_at) == ("2026-11", record.ended_at)
    copied = [(each.key_id, each.member_id, each.model, each.version, each.tier) for each in (adjustment, record)]
    assert copied[0] == copied[1]
    assert spent_picos(acme.id, "2026-11") == 600
    assert {row.amount_picos for row in MonthSpend.objects.all()} == {600}
    assert [shown(acme, granularity) for granularity in ("minute", "hour", "day")] == [600] * 3
    assert_equal()
    told = ControlChange.objects.filter(kind="month", key=str(acme.id)).latest("id").payload
    assert told is not None and told["spent_picos"] == "600"
    audit = AuditEntry.objects.get(action="usage.adjust")
    assert (audit.actor, audit.target, audit.tenant_id) == ("user:ann", "r1", acme.id)


def test_no_request_costs_less_than_nothing(acme: Tenant) -> None:
    used(acme)
    adjusted(acme, -400)
    with pytest.raises(InvalidInput, match=r"costs 0\.0000000006 US dollars"):
        adjusted(acme, -601)
    adjusted(acme, -600)
    with pytest.raises(InvalidInput):
        adjusted(acme, -1)
    assert spent_picos(acme.id, "2026-11") == 0
    assert Adjustment.objects.count() == AuditEntry.objects.filter(action="usage.adjust").count() == 2


def test_a_request_without_a_price_may_be_charged_later(acme: Tenant) -> None:
    used(acme, picos=None)
    adjusted(acme, 50, kind="re_rate")
    assert spent_picos(acme.id, "2026-11") == 50
    assert_equal()


@pytest.mark.parametrize(
    ("error", "changes"),
    [
        (NotFound, {"request_id": "r2"}),
        (NotFound, {"request_id": "theirs"}),
        (InvalidInput, {"picos": 0}),
        (InvalidInput, {"picos": 2**62 + 1}),
        (InvalidInput, {"kind": "discount"}),
        (InvalidInput, {"kind": "late_record"}),
        (InvalidInput, {"reason": " "}),
        (InvalidInput, {"request_id": None}),
        (InvalidInput, {"request_id": None, "kind": "goodwill", "picos": 5}),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(
    acme: Tenant, error: type[HeadwayError], changes: dict[str, Any]
) -> None:
    used(acme)
    used(create_tenant(name="globex", actor="test"), "theirs")
    given: dict[str, Any] = {"picos": -5, "request_id": "r1"} | changes
    with pytest.raises(error):
        adjusted(acme, given.pop("picos"), given.pop("request_id"), **given)
    assert not Adjustment.objects.exists()
    assert not AuditEntry.objects.filter(action="usage.adjust").exists()
    assert spent_picos(acme.id, "2026-11") == 1_000


def test_goodwill_for_nothing_is_of_the_month_that_runs(acme: Tenant) -> None:
    used(acme)
    adjustment = adjusted(acme, -5_000, None, kind="goodwill")
    assert (adjustment.record, adjustment.billing_month, adjustment.usage_at) == (None, "2026-12", DECEMBER)
    assert spent_picos(acme.id, "2026-12") == -5_000
    assert_equal()


def test_after_its_statement_a_correction_is_on_the_next_one(acme: Tenant) -> None:
    used(acme)
    close_month(tenant_id=acme.id, month="2026-11")
    assert adjusted(acme, -400).billing_month == "2026-12"
    assert (spent_picos(acme.id, "2026-11"), spent_picos(acme.id, "2026-12")) == (1_000, -400)
    assert shown(acme, "day") == 600, "usage over time shows it where the request was"
    assert_equal()


# A lost gateway's journal that is found again


@pytest.mark.parametrize("times", [1, 2])
def test_a_final_record_after_the_statement_adjusts_what_was_thought_once(acme: Tenant, times: int) -> None:
    used(acme, picos=300, end_state="gateway_lost", usage_source="partial", completion_tokens=3)
    close_month(tenant_id=acme.id, month="2026-11")
    for _ in range(times):
        used(acme, picos=1_000, completion_tokens=10)
    record = UsageRecord.objects.get()
    assert (record.end_state, record.amount_picos, record.completion_tokens) == ("gateway_lost", 300, 3)
    adjustment = Adjustment.objects.get()
    assert (adjustment.kind, adjustment.amount_picos, adjustment.billing_month) == ("late_record", 700, "2026-12")
    assert (spent_picos(acme.id, "2026-11"), spent_picos(acme.id, "2026-12")) == (300, 700)
    assert_equal()


def test_a_final_record_that_costs_less_than_what_was_taken_off_leaves_nothing_below_zero(acme: Tenant) -> None:
    used(acme, picos=300, end_state="gateway_lost", usage_source="partial")
    adjusted(acme, -250)
    used(acme, picos=100)
    assert net_picos(UsageRecord.objects.get()) == 0
    assert spent_picos(acme.id, "2026-11") == 0
    assert_equal()


def test_a_reference_is_one_adjustment_and_another_wish_is_refused(acme: Tenant) -> None:
    used(acme)
    used(create_tenant(name="globex", actor="test"), "g1")
    globex = Tenant.objects.get(name="globex")
    first = adjusted(acme, -400, reference="ticket 7")
    assert adjusted(acme, -400, reference=" ticket  7") == first
    for change in ({"picos": -401}, {"kind": "goodwill"}, {"reason": "another"}, {"request_id": None, "kind": "goodwill"}):
        with pytest.raises(ReferenceUsed):
            adjusted(acme, **({"picos": -400, "reference": "ticket 7"} | change))  # type: ignore[arg-type]
    with pytest.raises(ReferenceUsed):
        adjusted(globex, -400, "g1", reference="ticket 7")
    assert adjusted(acme, -100).reference == adjusted(acme, -100).reference == ""
    assert net_picos(UsageRecord.objects.get(request_id="r1")) == 400
    assert spent_picos(globex.id, "2026-11") == 1_000


@pytest.mark.django_db(transaction=True)
def test_a_reference_told_by_several_at_once_is_one_adjustment_of_one_tenant(acme: Tenant) -> None:
    globex = create_tenant(name="globex", actor="test")
    used(acme)
    used(globex, "g1")
    assert at_once(*[lambda: adjusted(acme, -4, reference="a")] * 3) == {"done": 3}
    both = [lambda: adjusted(acme, -5, reference="b"), lambda: adjusted(globex, -5, "g1", reference="b")]
    assert at_once(*both) == {"done": 1, "ReferenceUsed": 1}
    assert sorted(Adjustment.objects.values_list("amount_picos", flat=True)) == [-5, -4]


def test_a_reason_that_does_not_fit_is_refused_and_not_cut(acme: Tenant) -> None:
    used(acme)
    with pytest.raises(InvalidInput):
        adjusted(acme, -1, reason="x" * 501)
    assert not Adjustment.objects.exists()
