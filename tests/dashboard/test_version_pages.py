"""A tenant's own say: which version answers it, and whether its requests are mirrored."""

import pytest
from django.test import Client

from inference.rollout_models import VersionPin
from tenants.models import User
from tests.inference.services.rollout_cast import Cast
from tests.tenants.cast import full_tenant

pytestmark = pytest.mark.django_db


def sitting(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_an_owner_stays_on_a_version_and_lets_go_of_it() -> None:
    Cast()
    tenant, people = full_tenant("acme")
    owner = sitting(people["owner"])
    assert "the stable version, now v1" in owner.get("/t/acme/models/").content.decode()
    owner.post("/t/acme/models/pin/", {"model": "m", "version": "v1"})
    assert VersionPin.objects.get().tenant_id == tenant.id
    assert "v1, pinned" in owner.get("/t/acme/models/").content.decode()
    refused = owner.post("/t/acme/models/pin/", {"model": "m", "version": "v2"}, follow=True)
    assert "is not served" in refused.content.decode()
    assert str(VersionPin.objects.get().version) == "m v1"
    owner.post("/t/acme/models/pin/", {"model": "m", "version": ""})
    assert not VersionPin.objects.exists()


def test_who_may_not_change_settings_changes_neither() -> None:
    Cast()
    tenant, people = full_tenant("acme")
    for role in ("developer", "billing", "viewer"):
        client = sitting(people[role])
        assert "Answered by" not in client.get("/t/acme/models/").content.decode()
        assert client.post("/t/acme/models/pin/", {"model": "m", "version": "v1"}).status_code == 403
        assert client.post("/t/acme/settings/shadow/", {"is_allowed": "no"}).status_code == 403
    tenant.refresh_from_db()
    assert not tenant.no_shadow
    assert not VersionPin.objects.exists()


def test_requests_are_left_out_of_what_is_mirrored_by_a_button() -> None:
    tenant, people = full_tenant("acme")
    owner = sitting(people["owner"])
    owner.post("/t/acme/settings/shadow/", {"is_allowed": "no"})
    tenant.refresh_from_db()
    assert tenant.no_shadow
    assert "left out" in owner.get("/t/acme/settings/").content.decode()
    owner.post("/t/acme/settings/shadow/", {"is_allowed": "yes"})
    tenant.refresh_from_db()
    assert not tenant.no_shadow
