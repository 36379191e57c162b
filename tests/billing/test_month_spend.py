import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection
from django.utils import timezone

from billing.errors import UsageRefused
from billing.models import MonthSpend, UsageRecord
from billing.selectors import spent_picos
from billing.services.adjustments import adjust_usage
from billing.services.ledger import UsageDraft, record_usage
from inference.models import ControlChange, Model
from inference.services import control
from tenants.models import LimitKind, Tenant
from tenants.services.alerts import raise_budget_alerts
from tenants.services.keys import issue_api_key
from tenants.services.tenants import create_tenant
from tenants.services.terms import set_limits
from tests.inference.gateway.usage_drafts import draft

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Tenant:
    return create_tenant(name="acme", actor="test")


def priced(
    request_id: str, tenant: Tenant, amount_picos: int | None = 10, end_state: str = "done", **others: Any
) -> UsageDraft:
    fields = {"tenant_id": str(tenant.id), "amount_picos": amount_picos, "price_version": "3"} | others
    return draft(request_id, end_state, **fields)


def at(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()  # type: ignore[arg-type, misc]


def months(tenant: Tenant) -> dict[str, int]:
    return dict(MonthSpend.objects.filter(tenant_id=tenant.id, key_id="", model="").values_list("month", "amount_picos"))


def told(tenant: Tenant) -> dict[str, Any]:
    payload: dict[str, Any] | None = ControlChange.objects.filter(kind="month", key=str(tenant.id)).latest("id").payload
    assert payload is not None
    return payload


def test_amounts_are_recorded_and_add_up_in_the_month_the_request_ended_in(acme: Tenant) -> None:
    record_usage(
        drafts=[
            priced("a", acme, 10, ended_at_s=at(2026, 11, 30, 23, 59)),
            priced("b", acme, 5, ended_at_s=at(2026, 12, 1)),
            priced("c", acme, 7, ended_at_s=at(2026, 12, 5)),
            priced("d", acme, None, ended_at_s=at(2026, 12, 5)),
        ]
    )
    assert months(acme) == {"2026-11": 10, "2026-12": 12}
    assert spent_picos(acme.id, "2026-12") == 12
    record = UsageRecord.objects.get(request_id="a")
    assert (record.amount_picos, record.price_version) == (10, "3")


def test_the_month_is_that_of_the_tenants_time_zone(acme: Tenant) -> None:
    set_limits(tenant=acme, limits={}, time_zone="Asia/Tokyo", actor="test")
    record_usage(
        drafts=[priced("a", acme, ended_at_s=at(2026, 11, 30, 15)), priced("b", acme, ended_at_s=at(2026, 11, 30, 14, 59))]
    )
    assert months(acme) == {"2026-12": 10, "2026-11": 10}


def test_a_request_is_added_once_however_often_it_is_given(acme: Tenant) -> None:
    for _ in range(3):
        record_usage(drafts=[priced("a", acme), priced("a", acme)])
    record_usage(drafts=[priced("a", acme, 99, "engine_error")])
    assert sum(months(acme).values()) == 10


def test_a_final_record_takes_the_place_of_gateway_losts_amount(acme: Tenant) -> None:
    record_usage(drafts=[priced("a", acme, 4, "gateway_lost", ended_at_s=at(2026, 11, 30))])
    record_usage(drafts=[priced("a", acme, 10, ended_at_s=at(2026, 12, 1))])
    record_usage(drafts=[priced("a", acme, 4, "gateway_lost", ended_at_s=at(2026, 11, 30))])
    assert months(acme) == {"2026-11": 0, "2026-12": 10}


@pytest.mark.parametrize("order", [(0, 4, 10), (10, 4, 0), (4, 0, 10), (4, 10, 0)])
def test_of_a_lost_gateways_request_the_month_has_one_amount(acme: Tenant, order: tuple[int, ...]) -> None:
    kinds = {0: ("gateway_lost", "none"), 4: ("gateway_lost", "partial"), 10: ("done", "engine")}
    for micros in order:
        end_state, source = kinds[micros]
        record_usage(drafts=[priced("a", acme, micros, end_state, usage_source=source)])
    assert sum(months(acme).values()) == 10


def test_a_batch_that_is_refused_adds_nothing(acme: Tenant) -> None:
    with pytest.raises((UsageRefused, DatabaseError, ValueError)):
        record_usage(drafts=[priced("a", acme), priced("b", acme, prompt_tokens=-1)])
    assert months(acme) == {}
    assert not ControlChange.objects.filter(kind="month").exists()


def test_each_change_is_told_to_the_data_plane_with_the_end_of_the_month(acme: Tenant) -> None:
    record_usage(drafts=[priced("a", acme, ended_at_s=at(2026, 12, 5))])
    record_usage(drafts=[priced("b", acme, ended_at_s=at(2026, 12, 6)), priced("c", acme, ended_at_s=at(2026, 11, 6))])
    rows = ControlChange.objects.filter(kind="month", key=str(acme.id)).order_by("id").values_list("payload", flat=True)
    same = {"month": "2026-12", "ends_at": at(2027, 1, 1), "keys": {}, "models": {}, "key_changes": {}, "model_changes": {}}
    same |= {"raised_picos": "0", "lowered_picos": "0"}
    assert list(rows) == [{**same, "spent_picos": "10"}, {**same, "spent_picos": "20"}]
    record_usage(drafts=[priced("free", acme, 0)])
    assert len(rows.all()) == 2, "nothing is told when nothing was spent"


def test_keys_and_models_have_months_of_their_own_and_those_with_a_budget_are_told(acme: Tenant) -> None:
    Model.objects.create(public_id="tiny")
    key = issue_api_key(tenant=acme, name="ci", actor="test").key
    now_s = timezone.now().timestamp()
    record_usage(
        drafts=[
            priced("a", acme, 1, key_id=key.id, model="tiny", ended_at_s=now_s),
            priced("b", acme, 2, key_id=key.id, model="big", ended_at_s=now_s),
            priced("c", acme, 4, key_id="other", model="tiny", ended_at_s=now_s),
        ]
    )
    assert told(acme)["spent_picos"] == "7"
    set_limits(tenant=acme, key_id=key.id, limits={LimitKind.BUDGET: 100}, actor="test")
    set_limits(tenant=acme, model="tiny", limits={LimitKind.BUDGET: 100}, actor="test")
    assert (told(acme)["keys"], told(acme)["models"]) == ({key.id: "3"}, {"tiny": "5"})
    record_usage(drafts=[priced("d", acme, 8, key_id=key.id, model="big", ended_at_s=now_s)])
    assert (told(acme)["keys"], told(acme)["models"]) == ({key.id: "11"}, {"tiny": "5"})


def test_what_corrections_changed_is_told_of_the_tenant_and_of_what_has_a_budget(acme: Tenant) -> None:
    Model.objects.create(public_id="tiny")
    keys = [issue_api_key(tenant=acme, name=name, actor="test").key.id for name in ("one", "two")]
    now = timezone.now()
    named: dict[str, Any] = {"model": "tiny", "ended_at_s": now.timestamp()}
    record_usage(drafts=[priced(f"r{place}", acme, 100, key_id=key_id, **named) for place, key_id in enumerate(keys)])
    for amount in (-30, 5, -3):
        adjust_usage(
            tenant_id=acme.id, request_id="r0", amount_picos=amount, kind="correction", reason="x", actor="test", now=now
        )
    set_limits(tenant=acme, key_id=keys[0], limits={LimitKind.BUDGET: 100}, actor="test")
    set_limits(tenant=acme, model="tiny", limits={LimitKind.BUDGET: 100}, actor="test")
    payload = told(acme)
    assert (payload["spent_picos"], payload["raised_picos"], payload["lowered_picos"]) == ("172", "5", "33")
    assert payload["key_changes"] == {keys[0]: ["5", "33"]} and payload["keys"] == {keys[0]: "72"}
    assert payload["model_changes"] == {"tiny": ["5", "33"]} and payload["models"] == {"tiny": "172"}


def test_rows_of_a_figure_go_once_they_were_replaced_a_while_ago(acme: Tenant) -> None:
    for number in range(3):
        row = control.publish_now(kind="month", key="t", payload={"n": number})
        ControlChange.objects.filter(id=row.id).update(at=timezone.now() - timedelta(seconds=300 - number))
    record_usage(drafts=[priced("a", acme)])
    assert ControlChange.objects.filter(kind="month", key="t").count() == 3, "other tenants' are not touched"
    control.publish_figure(kind="month", key="t", payload={"n": 3})
    left = ControlChange.objects.filter(kind="month", key="t").order_by("id").values_list("payload__n", flat=True)
    assert list(left) == [2, 3], "a reader that has just read the newest still finds it"


@pytest.mark.parametrize("lost_micros", [10, 3, None])
@pytest.mark.django_db(transaction=True)
def test_two_who_write_the_same_requests_at_once_add_each_once(acme: Tenant, lost_micros: int | None) -> None:
    errors: list[Exception] = []

    def write(order: int) -> None:
        try:
            for start in range(0, 100, 10):
                ids = list(range(start, start + 10))[::order]
                amount_picos, end_state = (10, "done") if order > 0 else (lost_micros, "gateway_lost")
                record_usage(drafts=[priced(f"r{number}", acme, amount_picos, end_state) for number in ids])
        except DatabaseError as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=write, args=(order,)) for order in (1, -1, 1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert sum(months(acme).values()) == 1000


@pytest.mark.django_db(transaction=True)
def test_b64_nothing_that_runs_again_and_again_changes_what_was_spent(acme: Tenant) -> None:
    """A month begins with its first record and is never set back: there is no job that could."""
    now = timezone.now()
    record_usage(drafts=[priced("a", acme, 900, ended_at_s=now.timestamp())])
    set_limits(tenant=acme, limits={LimitKind.BUDGET: 1_000}, actor="test")
    before = months(acme)
    errors: list[BaseException] = []

    def sweep() -> None:
        try:
            raise_budget_alerts(now)
            set_limits(tenant=acme, limits={LimitKind.BUDGET: 1_000}, actor="test")
            record_usage(drafts=[priced("a", acme, 900, ended_at_s=now.timestamp())])
        except BaseException as error:  # noqa: BLE001  shown by the test
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=sweep) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert months(acme) == before
    assert told(acme)["spent_picos"] == "900"
