"""Our own account: made once, known by its plan, sent no invoice; nobody else becomes it."""

from datetime import UTC, datetime

import pytest

from billing.invoice_models import Invoice
from billing.services.closing import close_all
from inference.models import ControlChange
from tenants.errors import NotAllowed
from tenants.models import Plan, Tenant
from tenants.selectors import all_plans, every_tenant_id, tenants_like, terms_in_force
from tenants.services.operations import NAME, operations_account
from tenants.services.plan_choice import choose_plan
from tenants.services.tenants import create_tenant
from tenants.services.terms import set_plan

pytestmark = pytest.mark.django_db


def told_terms(tenant: Tenant) -> dict[str, object]:
    payload = ControlChange.objects.filter(kind="terms", key=str(tenant.id)).latest("id").payload
    assert isinstance(payload, dict)
    return payload


def test_it_is_made_once_and_gateways_are_told_what_it_is() -> None:
    account = operations_account(actor="test")
    assert operations_account(actor="test") == account
    assert account.name == NAME
    terms = terms_in_force(account)
    assert (terms.is_operator, terms.tier_ceiling, terms.discount_percent, terms.limits) == (True, "batch", 100, ())
    assert told_terms(account)["is_operator"] is True
    assert told_terms(create_tenant(name="acme", actor="test"))["is_operator"] is False


def test_who_took_its_name_is_not_it() -> None:
    customer = create_tenant(name=NAME, actor="test")
    account = operations_account(actor="test")
    assert account != customer
    assert operations_account(actor="test") == account
    assert not terms_in_force(customer).is_operator


def test_nobody_is_put_on_its_plan() -> None:
    operations_account(actor="test")
    acme = create_tenant(name="acme", actor="test")
    with pytest.raises(NotAllowed):
        choose_plan(tenant=acme, plan="headway-operations", actor="user:a")
    with pytest.raises(NotAllowed):
        set_plan(tenant=acme, plan="headway-operations", actor="operator:o")
    assert not terms_in_force(Tenant.objects.get(name="acme")).is_operator
    assert "headway-operations" not in {plan.name for plan in all_plans()}
    assert Plan.objects.filter(name="headway-operations").exists()


def test_it_is_not_among_the_customers() -> None:
    account, acme = operations_account(actor="test"), create_tenant(name="acme", actor="test")
    assert list(tenants_like("")) == [acme]
    assert list(tenants_like("operations")) == [account], "whoever looks for it finds it"
    assert every_tenant_id() == [acme.id]
    closing = close_all("2026-01", actor="test", now=datetime(2026, 3, 1, tzinfo=UTC))
    assert account.id not in {closed.statement.tenant_id for closed in closing.closed}
    assert not Invoice.objects.exists()
