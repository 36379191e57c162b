import uuid
from typing import Any

import pytest

from billing.account_models import BillingAccount
from billing.services.accounts import billing_account, set_billing_account
from headway.errors import InvalidInput
from tenants.errors import UnknownTenant
from tenants.models import AuditEntry, Tenant
from tenants.services.tenants import create_tenant

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Tenant:
    return create_tenant(name="acme", actor="test")


def set_account(tenant: Tenant, **fields: Any) -> BillingAccount:
    return set_billing_account(tenant_id=tenant.id, actor="user:ann", **fields)


def test_an_account_is_tidied_and_what_is_left_out_stays(acme: Tenant) -> None:
    set_account(
        acme, legal_name="  Acme\n GmbH ", address=["Weg 1", "", " 20095  Hamburg"], country="de", tax_id="de 123.456.789"
    )
    account = set_account(acme, email=" pay@acme.example ", currency="eur", purchase_order="PO-7")
    assert (account.legal_name, account.address, account.country) == ("Acme GmbH", ["Weg 1", "20095 Hamburg"], "DE")
    assert (account.tax_id, account.email, account.currency) == ("DE123456789", "pay@acme.example", "EUR")
    assert billing_account(acme.id) == account


def test_each_change_is_audited_with_what_was_before_and_none_is_none(acme: Tenant) -> None:
    set_account(acme, legal_name="Acme")
    set_account(acme, legal_name="Acme")
    set_account(acme, legal_name="Acme Ltd")
    entries = list(AuditEntry.objects.filter(action="billing_account.set", tenant=acme).order_by("id"))
    assert [(each.before["legal_name"], each.after["legal_name"]) for each in entries] == [("", "Acme"), ("Acme", "Acme Ltd")]
    assert entries[0].actor == "user:ann"


@pytest.mark.parametrize(
    "fields",
    [
        {"country": "XX"},
        {"country": "Germany"},
        {"currency": "XYZ"},
        {"email": "no address"},
        {"country": "DE", "tax_id": "FR12345678901"},
        {"country": "FR"},  # the number that is there is a German one
        {"address": ["x"] * 7},
        {"address": ["x" * 101]},
        {"legal_name": "x" * 201},
        {"legal_name": "a\u202eb"},
        {"purchase_order": "x" * 65},
    ],
)
def test_what_cannot_be_right_is_refused_and_nothing_changes(acme: Tenant, fields: dict[str, Any]) -> None:
    before = set_account(acme, legal_name="Acme", country="DE", tax_id="DE123456789")
    with pytest.raises(InvalidInput) as refused:
        set_account(acme, legal_name="Other") if not fields else set_account(acme, **fields)
    assert refused.value.param in {*fields, "tax_id"}
    assert billing_account(acme.id).__dict__ | {"_state": 0} == before.__dict__ | {"_state": 0}


def test_a_tenant_without_an_account_has_an_empty_one_that_is_not_stored(acme: Tenant) -> None:
    account = billing_account(acme.id)
    assert account._state.adding and (account.legal_name, account.currency) == ("", "USD")
    with pytest.raises(UnknownTenant):
        set_billing_account(tenant_id=uuid.uuid4(), legal_name="Nobody", actor="test")
    assert not BillingAccount.objects.exists()
