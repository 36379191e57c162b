import pytest

from inference.models import ControlChange
from tenants.models import Tenant
from tenants.selectors import terms_in_force
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
