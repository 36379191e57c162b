"""Exports as operators and customers ask for them and take them."""

import csv
import html
import io
import re
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from billing.export_models import Export
from billing.services.export_work import carry_on
from billing.services.exports import file_of
from dashboard import request_file
from dashboard.services.form_claims import FIELD, new_nonce
from headway.home import Home
from tenants.models import AuditEntry, User
from tenants.services.members import ensure_operator
from tests.dashboard.furnished import MODELS, Furnished, furnish
from tests.tenants.cast import full_tenant, person
from workers.models import Mail

pytestmark = pytest.mark.django_db

MAX_QUERIES = 20
PAGES = ("/operator/exports/", "/t/acme/exports/")


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> None:
    settings.HOME = Home(tmp_path)


@pytest.fixture
def acme() -> Furnished:
    return furnish(num_requests=30)


@pytest.fixture
def operator() -> Client:
    user = ensure_operator(username="operator", password="x")
    User.objects.filter(id=user.id).update(email="op@example.com")
    return client_of(user)


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def days() -> dict[str, str]:
    """A form that was just drawn."""
    today = timezone.now().date()
    return {FIELD: new_nonce(), "from": str(today - timedelta(days=20)), "to": str(today + timedelta(days=1))}


def made() -> Export:
    export = Export.objects.latest("created_at")
    carry_on({"export": str(export.id)})
    export.refresh_from_db()
    assert export.state == "ready"
    return export


def test_pages_open_with_few_queries_in_every_state_and_nothing_inline(acme: Furnished, operator: Client) -> None:
    owner = client_of(acme.people["owner"])
    owner.get("/t/acme/")

    def look() -> list[str]:
        found = []
        for client, address in ((operator, PAGES[0]), (owner, PAGES[1])):
            with CaptureQueriesContext(connection) as queries:
                response = client.get(address)
            assert response.status_code == 200
            assert len(queries) <= MAX_QUERIES, (address, len(queries))
            found.append(response.content.decode())
            assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", found[-1]), address
        return found

    assert all("No file was asked for yet" in page for page in look())
    for tenant_id in (None, acme.tenant.id):
        now = timezone.now()
        for state in ("asked", "running", "ready", "failed", "expired"):
            asked = {"month": "2026-11", "first": "2026-11-01", "last": "2026-11-30"}
            kind = "ledger" if tenant_id is None else "requests"
            common = {"asked": asked, "asked_by": "x", "created_at": now, "expires_at": now, "rows_done": 50, "rows_total": 200}
            Export.objects.create(kind=kind, tenant_id=tenant_id, state=state, reason="no room", **common)
    for page in look():
        assert 'hx-trigger="every 3s"' in page and "25.0 %" in page and "no room" in page
        assert page.count("<progress") == 1
    Export.objects.filter(state__in=("asked", "running")).delete()
    assert all('hx-trigger="every 3s"' not in page for page in look())


def test_an_operator_asks_for_a_month_and_takes_the_file(acme: Furnished, operator: Client) -> None:
    month = f"{timezone.now():%Y-%m}"
    operator.post("/operator/exports/new/", {"month": "nonsense", FIELD: new_nonce()})
    assert not Export.objects.exists()
    operator.post("/operator/exports/new/", {"month": month, FIELD: new_nonce()})
    assert "a mail tells you" in operator.get(PAGES[0]).content.decode()
    export = made()
    response = operator.get(f"/operator/exports/{export.id}/file/")
    assert response["content-disposition"] == f'attachment; filename="headway-ledger-{month}.csv"'
    assert b"".join(response.streaming_content) == file_of(export).read_bytes()  # type: ignore[attr-defined]
    assert f"/operator/exports/{export.id}/file/" in operator.get(PAGES[0]).content.decode()
    mail = Mail.objects.filter(to="op@example.com").get()
    assert "/operator/exports/" in mail.text


def test_a_member_asks_for_requests_and_takes_the_file(acme: Furnished) -> None:
    client = client_of(acme.people["viewer"])
    client.post("/t/acme/exports/new/", {"from": "x", "to": "y", FIELD: new_nonce()})
    assert not Export.objects.exists()
    client.post("/t/acme/exports/new/", days() | {"model": MODELS[0]})
    export = made()
    address = f"/t/acme/exports/{export.id}/file/"
    lines = b"".join(client.get(address).streaming_content).decode().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == export.rows_done + 1 > 2
    assert all(MODELS[0] in line for line in lines[1:])
    assert address in client.get(PAGES[1]).content.decode()
    mail = Mail.objects.filter(to=acme.people["viewer"].email).get()
    assert "/t/acme/exports/" in mail.text
    assert AuditEntry.objects.get(action="export.ask").tenant_id == acme.tenant.id


def test_what_is_being_made_is_cancelled_by_those_who_may_ask_for_it(acme: Furnished, operator: Client) -> None:
    _other, people = full_tenant("other")
    owner = client_of(acme.people["owner"])
    operator.post("/operator/exports/new/", {"month": "2026-11", FIELD: new_nonce()})
    owner.post("/t/acme/exports/new/", days())
    of_operators, of_acme = Export.objects.get(tenant_id=None), Export.objects.get(tenant_id=acme.tenant.id)
    theirs, mine = f"/operator/exports/{of_operators.id}/cancel/", f"/t/acme/exports/{of_acme.id}/cancel/"
    assert theirs in operator.get(PAGES[0]).content.decode() and mine in owner.get(PAGES[1]).content.decode()
    client_of(acme.people["billing"]).post(mine)
    client_of(people["owner"]).post(f"/t/other/exports/{of_acme.id}/cancel/")
    owner.post(f"/t/acme/exports/{of_operators.id}/cancel/")
    owner.post(theirs)
    assert owner.get(mine).status_code == 405
    assert set(Export.objects.values_list("state", flat=True)) == {"asked"}
    owner.post(mine)
    operator.post(theirs)
    assert set(Export.objects.values_list("state", flat=True)) == {"cancelled"}
    page = owner.get(PAGES[1]).content.decode()
    assert mine not in page and "cancelled" in page
    assert AuditEntry.objects.get(action="export.cancel", tenant=acme.tenant).target == str(of_acme.id)


def test_a_form_that_is_posted_twice_makes_one_file(acme: Furnished, operator: Client) -> None:
    for client, address, fields in (
        (operator, PAGES[0], {"month": "2026-11"}),
        (client_of(acme.people["owner"]), PAGES[1], days()),
    ):
        token = re.search(rf'name="{FIELD}" value="([^"]+)"', client.get(address).content.decode())
        assert token is not None
        for _ in range(2):
            assert client.post(f"{address}new/", fields | {FIELD: token[1]}).status_code == 302
    assert Export.objects.count() == 2


def test_a_file_is_for_those_who_may_see_requests_and_for_nobody_else(acme: Furnished, operator: Client) -> None:
    client_of(acme.people["owner"]).post("/t/acme/exports/new/", days())
    export = made()
    _other, people = full_tenant("other")
    address = f"/t/acme/exports/{export.id}/file/"
    assert client_of(acme.people["billing"]).get(address).status_code == 403
    assert client_of(people["owner"]).get(address).status_code == 404
    assert client_of(people["owner"]).get(f"/t/other/exports/{export.id}/file/").status_code == 404
    assert client_of(person("stranger")).get(f"/operator/exports/{export.id}/file/").status_code == 404
    assert operator.get(f"/operator/exports/{export.id}/file/").status_code == 404, "a tenant's is not among the operators'"
    assert Client().get(address).status_code == 302
    assert client_of(acme.people["billing"]).post("/t/acme/exports/new/", days()).status_code == 403
    assert Export.objects.count() == 1


def test_a_file_has_the_rows_that_the_usage_page_sends_where_there_are_few(acme: Furnished) -> None:
    client = client_of(acme.people["owner"])
    client.post("/t/acme/exports/new/", days())
    export = made()
    with file_of(export).open(newline="") as file:
        exported = list(csv.DictReader(file))
    sent = client.get("/t/acme/requests.csv", {"range": "custom", **days()})
    lines = b"".join(sent.streaming_content).decode()  # type: ignore[attr-defined]
    assert exported == list(csv.DictReader(io.StringIO(lines))) and len(exported) > 20


def test_a_range_with_too_many_requests_leads_to_an_export_of_it(acme: Furnished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_file, "MAX_ROWS", 3)
    client = client_of(acme.people["owner"])
    page = client.get("/t/acme/usage/", {"range": "custom", "model": MODELS[0], **days()}).content.decode()
    link = re.search(r'href="(/t/acme/exports/\?[^"]*)"', page)
    assert link is not None
    form = client.get(html.unescape(link[1])).content.decode()
    assert f'value="{days()["from"]}"' in form and f"<option selected>{MODELS[0]}</option>" in form
    assert client.get("/t/acme/exports/?from=x&to=2026-99-99&key=%00").status_code == 200


def test_a_file_that_is_not_ready_or_gone_is_not_found(acme: Furnished) -> None:
    client = client_of(acme.people["owner"])
    client.post("/t/acme/exports/new/", days())
    export = Export.objects.get()
    address = f"/t/acme/exports/{export.id}/file/"
    assert client.get(address).status_code == 404
    made()
    file_of(export).unlink()
    assert client.get(address).status_code == 404
    assert client.get(f"/t/acme/exports/{uuid.uuid4()}/file/").status_code == 404
