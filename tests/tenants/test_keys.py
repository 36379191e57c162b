from datetime import timedelta

import pytest
from django.utils import timezone

from headway.errors import InvalidInput
from inference.models import ControlChange
from tenants.errors import TenantExists, TenantScopeMissing, UnknownKey, UnknownTenant
from tenants.models import ApiKey, AuditEntry, Tenant
from tenants.services.key_format import parse_key
from tenants.services.keys import issue_api_key, revoke_api_key
from tenants.services.tenants import create_tenant, tenant_named

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Tenant:
    return create_tenant(name="acme", actor="test")


@pytest.fixture
def globex() -> Tenant:
    return create_tenant(name="globex", actor="test")


def newest_change(kind: str, key: str) -> ControlChange:
    return ControlChange.objects.filter(kind=kind, key=key).latest("id")


def test_a_key_is_kept_as_a_hash_only(acme: Tenant) -> None:
    issued = issue_api_key(tenant=acme, name="ci", actor="test")
    parsed = parse_key(issued.text)
    assert parsed is not None
    stored = ApiKey.objects.for_tenant(acme).get()
    assert stored.secret_sha256 == parsed.secret_sha256
    everything = (
        str(list(ApiKey.unscoped.values())) + str(list(ControlChange.objects.values())) + str(list(AuditEntry.objects.values()))
    )
    assert parsed.secret not in everything
    assert parsed.secret not in repr(issued)


def test_an_issued_key_is_published_with_its_tenant(acme: Tenant) -> None:
    issued = issue_api_key(tenant=acme, name="ci", actor="test")
    payload = newest_change("key", issued.key.id).payload
    assert payload is not None
    assert payload["tenant_id"] == str(acme.id)
    assert newest_change("tenant", str(acme.id)).payload == {"name": "acme", "cache_salt": acme.cache_salt, "is_active": True}


def test_revoking_publishes_that_the_key_is_gone(acme: Tenant) -> None:
    issued = issue_api_key(tenant=acme, name="ci", actor="test")
    revoked = revoke_api_key(key_id=issued.key.id, actor="test")
    change = newest_change("key", issued.key.id)
    assert (change.id, change.payload) == (revoked.change_id, None)
    assert not revoked.was_revoked_already


def test_revoking_twice_keeps_the_first_time(acme: Tenant) -> None:
    issued = issue_api_key(tenant=acme, name="ci", actor="test")
    first = revoke_api_key(key_id=issued.key.id, actor="test").key.revoked_at
    again = revoke_api_key(key_id=issued.key.id, actor="test")
    assert again.was_revoked_already
    assert again.key.revoked_at == first
    assert AuditEntry.objects.filter(action="key.revoke").count() == 1


def test_an_unknown_key_is_an_error_and_publishes_nothing(acme: Tenant) -> None:
    before = ControlChange.objects.count()
    with pytest.raises(UnknownKey):
        revoke_api_key(key_id="nothing", actor="test")
    assert ControlChange.objects.count() == before


@pytest.mark.parametrize("name", ["", "   ", "x" * 101])
def test_a_key_needs_a_name(acme: Tenant, name: str) -> None:
    with pytest.raises(InvalidInput):
        issue_api_key(tenant=acme, name=name, actor="test")
    assert not ApiKey.unscoped.exists()


def test_an_expiry_in_the_past_is_refused(acme: Tenant) -> None:
    with pytest.raises(InvalidInput):
        issue_api_key(tenant=acme, name="ci", actor="test", expires_at=timezone.now() - timedelta(seconds=1))


@pytest.mark.parametrize("name", ["acme", "ACME", "Acme"])
def test_names_of_tenants_differ_by_more_than_case(acme: Tenant, name: str) -> None:
    with pytest.raises(TenantExists):
        create_tenant(name=name, actor="test")
    assert Tenant.objects.get() == acme


def test_keys_of_another_tenant_are_not_seen(acme: Tenant, globex: Tenant) -> None:
    issue_api_key(tenant=acme, name="ci", actor="test")
    assert not ApiKey.objects.for_tenant(globex).exists()


def test_a_query_that_names_no_tenant_is_refused(acme: Tenant) -> None:
    with pytest.raises(TenantScopeMissing):
        ApiKey.objects.all()


def test_a_tenants_name_is_unique_and_well_formed(acme: Tenant) -> None:
    with pytest.raises(TenantExists):
        create_tenant(name="acme", actor="test")
    for name in ("", "a b", "ä", "x" * 64):
        with pytest.raises(InvalidInput):
            create_tenant(name=name, actor="test")
    assert Tenant.objects.count() == 1


def test_a_tenant_is_found_by_name_and_by_id(acme: Tenant) -> None:
    assert tenant_named("acme") == tenant_named(str(acme.id)) == acme
    with pytest.raises(UnknownTenant):
        tenant_named("nobody")
