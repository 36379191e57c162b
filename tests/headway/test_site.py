"""The site over Django's client: health, log-in, every admin page, and that changes there go through services."""

from collections.abc import Iterator

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import reverse

from inference.models import ControlChange, Model, Pool, Replica
from inference.services.registry import register_model
from inference.services.version_spec import VersionSpec
from tenants.models import ApiKey, AuditEntry, Tenant, User
from tenants.services.key_format import parse_key
from tenants.services.keys import issue_api_key
from tenants.services.tenants import create_tenant

pytestmark = pytest.mark.django_db


@pytest.fixture
def client() -> Iterator[Client]:
    User.objects.create_superuser("operator", password="x")
    found = Client()
    assert found.login(username="operator", password="x")
    yield found


def test_health_answers_without_log_in() -> None:
    for path in ("/healthz", "/readyz"):
        response = Client().get(path)
        assert (response.status_code, response.json()) == (200, {"status": "ok"})
        assert response["x-request-id"].startswith("req_")


def test_a_stranger_is_sent_to_log_in() -> None:
    response = Client().get(reverse("admin:index"))
    assert response.status_code == 302
    assert response["location"].startswith("/admin/login/")


def test_every_admin_page_opens(client: Client) -> None:
    tenant = create_tenant(name="acme", actor="test")
    issue_api_key(tenant=tenant, name="ci", actor="test")
    register_model(public_id="m", actor="test", version=VersionSpec(weights_uri="/m", engine_environment="e"))
    for model in admin.site._registry:
        page = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
        assert client.get(page).status_code == 200, page
        first = model._base_manager.first()
        if first is not None:
            change = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_change", args=[first.pk])
            assert client.get(change).status_code == 200, change


def test_a_key_made_in_the_admin_is_shown_once_and_published(client: Client) -> None:
    tenant = create_tenant(name="acme", actor="test")
    page = client.post(reverse("admin:tenants_apikey_add"), {"tenant": tenant.pk, "name": "ci"}, follow=True)
    key = ApiKey.objects.for_tenant(tenant).get()
    text = next(word for word in page.content.decode().split() if word.startswith("hw_live_")).split("<")[0]
    parsed = parse_key(text)
    assert parsed is not None
    assert parsed.matches(key.secret_sha256)
    assert ControlChange.objects.filter(kind="key", key=key.id).exists()
    assert AuditEntry.objects.get(action="key.issue").actor == "admin:operator"
    assert "hw_live_" not in client.get(reverse("admin:tenants_apikey_changelist")).content.decode()


def test_keys_are_revoked_by_an_action(client: Client) -> None:
    tenant = create_tenant(name="acme", actor="test")
    key = issue_api_key(tenant=tenant, name="ci", actor="test").key
    client.post(reverse("admin:tenants_apikey_changelist"), {"action": "revoke", "_selected_action": [key.id]})
    assert ApiKey.objects.for_tenant(tenant).get().revoked_at is not None
    assert ControlChange.objects.filter(kind="key", key=key.id).latest("id").payload is None


def test_a_services_refusal_is_a_form_error_and_nothing_changes(client: Client) -> None:
    create_tenant(name="acme", actor="test")
    page = client.post(reverse("admin:tenants_tenant_add"), {"name": "acme"})
    assert page.status_code == 200
    assert "there is a tenant &#x27;acme&#x27; already" in page.content.decode()
    assert Tenant.objects.count() == 1


def test_a_model_and_an_external_replica_can_be_registered(client: Client) -> None:
    client.post(reverse("admin:inference_model_add"), {"public_id": "org/m"})
    pool = Pool.objects.get(model=Model.objects.get())
    data = {"pool": pool.pk, "url": "http://127.0.0.1:9", "kind": "openai", "upstream_model": "m"}
    client.post(reverse("admin:inference_replica_add"), data)
    assert Replica.objects.get().state == "certifying"
    refused = client.post(reverse("admin:inference_replica_add"), {**data, "url": "nowhere"})
    assert "url must be" in refused.content.decode()
    assert Replica.objects.count() == 1


def test_pools_are_scaled_by_actions(client: Client) -> None:
    register_model(public_id="m", actor="test", version=VersionSpec(weights_uri="/m", engine_environment="e"))
    page, pool = reverse("admin:inference_pool_changelist"), Pool.objects.get()
    client.post(page, {"action": "one_more", "_selected_action": [pool.pk]})
    assert Replica.objects.filter(is_wanted=True).count() == 1
    client.post(page, {"action": "one_less", "_selected_action": [pool.pk]})
    assert Replica.objects.filter(is_wanted=True).count() == 0
    refused = client.post(page, {"action": "one_less", "_selected_action": [pool.pk]}, follow=True)
    assert "between 0 and 1000" in refused.content.decode()


def test_rows_cannot_be_edited_or_deleted(client: Client) -> None:
    tenant = create_tenant(name="acme", actor="test")
    page = reverse("admin:tenants_tenant_change", args=[tenant.pk])
    assert client.post(page, {"name": "other"}).status_code == 403
    assert client.post(reverse("admin:tenants_tenant_delete", args=[tenant.pk]), {"post": "yes"}).status_code == 403
    tenant.refresh_from_db()
    assert tenant.name == "acme"
