"""In which currency a customer may be billed: one in which every month that is open can be closed."""

from datetime import UTC, date, datetime

import pytest

from billing.account_models import BillingAccount
from billing.services.accounts import billing_account
from billing.services.closing import close_statement
from billing.services.ledger import record_usage
from billing.services.own_account import change_own_account, currencies_on_offer
from billing.services.rates import set_exchange_rate
from headway.errors import InvalidInput
from tenants.models import Tenant
from tests.billing.priced_usage import price, used
from tests.tenants.cast import tenant_with

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("company")]
DECEMBER = datetime(2026, 12, 2, tzinfo=UTC)


@pytest.fixture
def acme() -> Tenant:
    for currency, since in (("EUR", date(2026, 1, 1)), ("GBP", date(2026, 12, 1)), ("JPY", date(2027, 1, 1))):
        set_exchange_rate(currency=currency, units_per_usd="0.9", effective_from=since, actor="test")
    return tenant_with("acme")


def offered(tenant: Tenant, now: datetime) -> list[str]:
    tenant.refresh_from_db()
    return currencies_on_offer(billing_account(tenant.id), tenant.time_zone, now=now)


def test_a_currency_in_which_last_month_cannot_be_closed_is_offered_once_that_is_closed(acme: Tenant) -> None:
    at = DECEMBER.replace(month=11)
    record_usage(drafts=[used(acme, "a", at, price=price(1, 10**9, 0, 0))], now=at)
    assert offered(acme, DECEMBER) == ["USD", "EUR"]
    with pytest.raises(InvalidInput):
        change_own_account(tenant_id=acme.id, actor="test", currency="GBP", now=DECEMBER)
    assert not BillingAccount.objects.exists()
    close_statement(tenant_id=acme.id, month="2026-11", actor="test", now=DECEMBER)
    assert offered(acme, DECEMBER) == ["USD", "EUR", "GBP"]
    assert change_own_account(tenant_id=acme.id, actor="test", currency="GBP", now=DECEMBER).currency == "GBP"


def test_the_day_that_runs_is_the_tenants_own(acme: Tenant) -> None:
    """A rate from today on does not hold yet where it is still yesterday."""
    Tenant.objects.filter(pk=acme.pk).update(time_zone="Etc/GMT+12")
    begins = datetime(2026, 12, 1, 6, tzinfo=UTC)
    assert offered(acme, begins) == ["USD", "EUR"]
    assert offered(acme, begins.replace(hour=12)) == ["USD", "EUR", "GBP"]
