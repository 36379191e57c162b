"""The demo's member: made once, and able to log in."""

import pytest
from django.test import Client

from dashboard.services.people import ensure_demo_member
from tenants.models import Membership
from tests.tenants.cast import person, tenant_with

pytestmark = pytest.mark.django_db


def test_the_demo_has_an_owner_who_can_log_in_and_is_left_as_they_are() -> None:
    tenant = tenant_with("demo", owner=person("ann"))
    first = ensure_demo_member(email="demo@headway.example", password="the first password", tenant=tenant)
    again = ensure_demo_member(email="demo@headway.example", password="another password", tenant=tenant)
    assert first.pk == again.pk
    assert Membership.objects.for_tenant(tenant).get(user=first).role == "owner"
    client = Client()
    client.post("/accounts/login/", {"login": "demo@headway.example", "password": "the first password"})
    assert client.get("/t/demo/").status_code == 200
