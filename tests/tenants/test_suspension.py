"""Suspending a tenant from the command line, and twice."""

import json

import pytest
from django.core.management import call_command

from headway.errors import InvalidInput
from tenants.models import AuditEntry
from tenants.services.suspension import suspend_tenant
from tests.tenants.cast import tenant_with

pytestmark = pytest.mark.django_db


def test_it_says_what_holds_and_whether_anything_changed(capsys: pytest.CaptureFixture[str]) -> None:
    tenant_with("acme")
    told = []
    for arguments in (("--reason", "unpaid"), ("--reason", "again"), ("--end",), ("--end",)):
        call_command("suspend_tenant", "acme", *arguments, "--json")
        found = json.loads(capsys.readouterr().out)
        told.append((found["state"], found["changed"]))
    assert told == [("suspended", True), ("suspended", False), ("served", True), ("served", False)]
    assert AuditEntry.objects.filter(action__in=["tenant.suspend", "tenant.resume"]).count() == 2


def test_there_is_a_reason() -> None:
    acme = tenant_with("acme")
    with pytest.raises(InvalidInput):
        suspend_tenant(tenant=acme, reason="  ", actor="test")
    acme.refresh_from_db()
    assert acme.suspended_at is None
