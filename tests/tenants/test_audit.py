import pytest
from django.test import Client

from tenants.errors import AuditIsAppendOnly
from tenants.models import AuditEntry, User
from tenants.services.audit import acting_from, record_audit
from tenants.services.tenants import create_tenant

pytestmark = pytest.mark.django_db


def test_an_entry_says_from_where() -> None:
    with acting_from("203.0.113.9"):
        inside = record_audit(actor="user:ann", action="a", target="t")
    outside = record_audit(actor="command", action="a", target="t")
    assert (inside.address, outside.address) == ("203.0.113.9", "")


def test_the_site_names_the_clients_address_behind_its_proxies(settings: pytest.FixtureRequest) -> None:
    settings.TRUSTED_PROXY_HOPS = 1  # type: ignore[attr-defined]
    User.objects.create_superuser("operator", password="x")
    client = Client()
    assert client.login(username="operator", password="x")
    forged = {"HTTP_X_FORWARDED_FOR": "10.0.0.1, 198.51.100.7"}
    assert client.post("/admin/tenants/tenant/add/", {"name": "acme"}, **forged).status_code == 302  # type: ignore[arg-type]
    entry = AuditEntry.objects.get(action="tenant.create")
    assert (entry.address, entry.request_id[:4]) == ("198.51.100.7", "req_")


def test_nothing_changes_or_deletes_what_was_written() -> None:
    entry = record_audit(actor="a", action="b", target="c", tenant=create_tenant(name="acme", actor="test"))
    entry.action = "forged"
    attempts = (
        entry.save,
        entry.delete,
        AuditEntry.objects.all().delete,
        AuditEntry.objects.filter(pk=entry.pk).delete,
        lambda: AuditEntry.objects.update(action="forged"),
        lambda: AuditEntry.objects.bulk_update([entry], ["action"]),
    )
    for attempt in attempts:
        with pytest.raises(AuditIsAppendOnly):
            attempt()
    assert AuditEntry.objects.get(pk=entry.pk).action == "b"
