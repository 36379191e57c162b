"""Every page: it opens for whoever may see it, for nobody else, with few queries, and with nothing inline."""

import re
import time
from collections.abc import Iterator

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import URLPattern, URLResolver, get_resolver

from tenants.access import Action, Role, allows
from tenants.models import AuditEntry
from tenants.services.keys import issue_api_key
from tests.dashboard.furnished import MODELS, REQUEST_ID, Furnished, furnish
from tests.tenants.cast import full_tenant, person

pytestmark = pytest.mark.django_db

MAX_QUERIES = 20
NEEDS = {
    "playground": Action.USE_PLAYGROUND,
    "keys": Action.VIEW_KEYS,
    "usage": Action.VIEW_USAGE,
    "usage.csv": Action.VIEW_USAGE,
    "requests": Action.VIEW_REQUESTS,
    "exports": Action.VIEW_REQUESTS,
    "requests.csv": Action.VIEW_REQUESTS,
    "limits": Action.VIEW_LIMITS,
    "members": Action.VIEW_MEMBERS,
    "audit": Action.VIEW_AUDIT,
    "audit.csv": Action.VIEW_AUDIT,
    "billing": Action.VIEW_BILLING,
    "webhooks": Action.VIEW_WEBHOOKS,
}


@pytest.fixture
def acme() -> Furnished:
    return furnish()


def client_of(acme: Furnished, role: str) -> Client:
    client = Client()
    client.force_login(acme.people[role])
    return client


def needed(address: str) -> Action:
    page = address.split("?")[0].removeprefix("/t/acme/").split("/")
    if page[0] == "keys" and len(page) > 2:
        return Action.MANAGE_KEYS
    return NEEDS.get(page[0], Action.VIEW_TENANT)


def tenant_patterns() -> Iterator[URLPattern]:
    def walk(patterns: list[URLPattern | URLResolver]) -> Iterator[URLPattern]:
        for each in patterns:
            if isinstance(each, URLResolver):
                yield from walk(each.url_patterns)
            elif str(each.pattern).startswith("t/<slug:tenant>/"):
                yield each

    yield from walk(get_resolver().url_patterns)


def filled(pattern: URLPattern, acme: Furnished) -> str:
    values = {
        "tenant": acme.tenant.name,
        "key_id": acme.key.id,
        "request_id": REQUEST_ID,
        "user_id": str(acme.people["viewer"].id),
        "invitation_id": "00000000-0000-4000-8000-000000000000",
        "view_id": "1",
        "preset_id": "00000000-0000-4000-8000-000000000000",
        "webhook_id": str(acme.endpoint.id),
        "delivery_id": "00000000-0000-4000-8000-000000000000",
        "number": acme.invoice.number,
        "position": "1",
        "export_id": "00000000-0000-4000-8000-000000000000",
    }
    return "/" + re.sub(r"<(?:\w+:)?(\w+)>", lambda found: values[found[1]], str(pattern.pattern))


def test_every_page_opens_with_at_most_20_queries_and_nothing_inline(acme: Furnished) -> None:
    client = client_of(acme, "owner")
    client.get(f"/t/{acme.tenant.name}/")  # the session learns which tenant was open last
    for address in acme.addresses():
        with CaptureQueriesContext(
            connection,
        ) as queries:
            response = client.get(address)
        assert response.status_code == 200, address
        assert len(queries) <= MAX_QUERIES, (address, len(queries))
        page = (b"".join(response) if response.streaming else response.content).decode()
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", page), address
        assert "default-src 'none'" in response["content-security-policy"], address
        for script in re.findall(r"<script[^>]*>", page):
            assert "src=" in script or 'type="application/json"' in script, (address, script)


def test_the_number_of_queries_does_not_grow_with_rows() -> None:
    few = furnish("few", num_requests=5)
    client = client_of(few, "owner")
    client.get("/t/few/")

    def counts() -> dict[str, int]:
        found = {}
        for address in few.addresses():
            with CaptureQueriesContext(connection) as queries:
                client.get(address)
            found[address] = len(queries)
        return found

    before = counts()
    for number in range(15):
        issue_api_key(tenant=few.tenant, name=f"more {number}", actor="test", member=few.people["owner"])
    assert counts() == before


@pytest.mark.any_database
def test_a_role_sees_the_pages_it_may_see_and_no_other(acme: Furnished) -> None:
    for role in Role:
        client = client_of(acme, role)
        for address in acme.addresses():
            wanted = 200 if allows(role, needed(address)) else 403
            assert client.get(address).status_code == wanted, (role, address)


@pytest.mark.any_database
def test_every_route_of_a_tenant_is_shut_to_strangers(acme: Furnished) -> None:
    """Walked from the routes themselves, so that a page added tomorrow is asked too."""
    _globex, people = full_tenant("globex")
    stranger, nobody = Client(), Client()
    stranger.force_login(people["owner"])
    number = 0
    for pattern in tenant_patterns():
        address = filled(pattern, acme)
        for method in ("get", "post"):
            assert getattr(stranger, method)(address).status_code in {404, 405}, address
            found = getattr(nobody, method)(address)
            assert found.status_code == 405 or found["location"].startswith("/accounts/login/"), address
            number += 1
    assert number > 60
    alone = Client()
    alone.force_login(person("alone"))
    assert alone.get("/")["location"] == "/start/"


@pytest.mark.any_database
def test_no_role_changes_what_it_may_not(acme: Furnished) -> None:
    """Every route that is posted to, as a viewer: nothing is written to the audit log."""
    client, before = client_of(acme, "viewer"), AuditEntry.objects.count()
    for pattern in tenant_patterns():
        address = filled(pattern, acme)
        if address.endswith("/leave/") or "/usage/views/" in address or "/exports/" in address:
            continue  # everybody may leave, keep views of their own, and have what they see as a file
        response = client.post(address, {"confirm": "acme", "plan": "free", "url": "https://x.example", "time_zone": "UTC"})
        assert response.status_code in {200, 403, 404, 405}, (address, response.status_code)
    assert AuditEntry.objects.count() == before


def test_numbers_on_pages_come_from_the_ledger(acme: Furnished) -> None:
    """B69: whatever process answers, and however often it is asked."""
    client, address = client_of(acme, "owner"), f"/t/{acme.tenant.name}/usage/?range=30d&group=none"
    pages = [re.findall(r"<dd>([\d,]+)</dd>", client.get(address).content.decode()) for _ in range(3)]
    assert pages[0] == pages[1] == pages[2]
    assert pages[0][0] == "200"
    lines = client.get(f"/t/{acme.tenant.name}/usage.csv?range=30d&group=none").content.decode().splitlines()
    assert sum(int(line.split(",")[2]) for line in lines[1:]) == 200


def test_a_day_is_a_day_of_the_tenants_zone_and_hours_are_those_of_its_minutes(acme: Furnished) -> None:
    client, totals = client_of(acme, "owner"), set()
    for granularity in ("minute", "hour", "day"):
        text = client.get(f"/t/acme/usage.csv?range=today&granularity={granularity}").content.decode()
        rows = [line.split(",") for line in text.splitlines()[1:]]
        totals.add(tuple(sum(int(row[column]) for row in rows) for column in (2, 3, 4, 5, 6)))
    assert len(totals) == 1
    assert MODELS[0] in client.get("/t/acme/usage/?range=30d").content.decode()


def test_another_tenants_receipt_looks_like_none(acme: Furnished) -> None:
    _, people = full_tenant("globex")
    client = Client()
    client.force_login(people["owner"])
    real = client.get(f"/t/globex/requests/{REQUEST_ID}/")
    made_up = client.get(f"/t/globex/requests/req_{'b' * 24}/")
    assert real.status_code == made_up.status_code == 200
    assert "Not here yet" in real.content.decode()
    for opened, is_waiting in ((int(time.time()) - 30, True), (int(time.time()) - 90, False), (10**11, False), ("x", True)):
        page = client.get(f"/t/globex/requests/{REQUEST_ID}/?opened={opened}").content.decode()
        assert ("Not here yet" in page, "Not found" in page, "every 1s" in page) == (is_waiting, not is_waiting, is_waiting)
    assert client.get("/t/globex/requests/nonsense/").status_code == 404
    assert REQUEST_ID not in real.content.decode().replace(f"/requests/{REQUEST_ID}/", "")
