from datetime import UTC, datetime

import pytest

from billing.services.closing import close_all
from inference.models import ControlChange
from tenants.models import Tenant
from tenants.selectors import tenants_like, terms_in_force
from tenants.services.operations import OPERATIONS_NAME, operations_tenant
from tenants.services.tenants import create_tenant

pytestmark = pytest.mark.django_db


def test_our_own_account_is_made_once_pays_nothing_and_is_told_to_the_data_plane() -> None:
    ours = operations_tenant(actor="test")
    assert operations_tenant(actor="test") == ours and ours.name == OPERATIONS_NAME
    assert (terms_in_force(ours).discount_percent, terms_in_force(ours).limits) == (100, ())
    told = ControlChange.objects.filter(kind="terms", key=str(ours.id)).latest("id").payload
    assert told is not None and told["is_operator"] is True


def test_a_customer_who_took_its_name_gets_none_of_its_rights() -> None:
    customer = create_tenant(name=OPERATIONS_NAME, actor="test")
    ours = operations_tenant(actor="test")
    assert ours != customer and ours.is_operator
    assert not Tenant.objects.get(id=customer.id).is_operator


def test_it_is_not_among_the_customers_and_is_sent_no_invoice() -> None:
    ours, acme = operations_tenant(actor="test"), create_tenant(name="acme", actor="test")
    assert list(tenants_like("")) == [acme]
    assert list(tenants_like("operations")) == [ours], "whoever looks for it finds it"
    closing = close_all("2026-01", actor="test", now=datetime(2026, 3, 1, tzinfo=UTC))
    assert {closed.statement.tenant_id for closed in closing.closed} == {acme.id}
