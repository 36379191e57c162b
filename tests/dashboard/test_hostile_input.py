"""What nobody types and somebody sends: control characters in filters and addresses, days at the ends of the calendar."""

from urllib.parse import quote

import pytest
from django.test import Client

from headway.errors import Conflict
from tenants.models import ApiKey, Tenant
from tests.dashboard.forms import form_nonce
from tests.dashboard.furnished import Furnished, furnish
from tests.dashboard.test_pages import tenant_patterns

pytestmark = pytest.mark.django_db

FILTERS = ("q", "model", "key", "action", "ended", "status", "page", "range", "from", "to", "group", "metric", "granularity")


@pytest.fixture
def acme() -> Furnished:
    return furnish(num_requests=5)


@pytest.fixture
def client(acme: Furnished) -> Client:
    found = Client()
    found.force_login(acme.people["owner"])
    return found


@pytest.mark.parametrize("text", ["%00", "a%00b", "%01%1f%7f", "%c2%85", "%ed%a0%80"])
def test_no_control_character_in_a_filter_is_an_error(acme: Furnished, client: Client, text: str) -> None:
    for address in {each.split("?")[0] for each in acme.addresses()}:
        query = "&".join(f"{name}={text}" for name in FILTERS)
        assert client.get(f"{address}?{query}").status_code == 200, address


@pytest.mark.parametrize("text", ["\0", "a\0b", "\x1f", "9" * 30])
def test_no_control_character_and_no_huge_number_in_an_address_is_an_error(acme: Furnished, client: Client, text: str) -> None:
    for pattern in tenant_patterns():
        route = str(pattern.pattern).replace("<slug:tenant>", acme.tenant.name)
        head, found, tail = route.partition("<")
        if not found:
            continue
        address = f"/{head}{quote(text)}{tail.partition('>')[2]}"
        address = address.replace("<str:delivery_id>", quote(text))
        for method in (client.get, client.post):
            assert method(address, {"confirm": "x"}).status_code in {302, 404, 405}, address
    assert client.get(f"/invitations/{quote(text)}/").status_code == 404
    assert client.post(f"/t/{acme.tenant.name}/settings/plan/", {"plan": text, "confirm": text}).status_code == 302


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/Los_Angeles"])
@pytest.mark.parametrize(
    ("first", "last"),
    [("9999-12-30", "9999-12-31"), ("0001-01-01", "0001-01-02"), ("1999-12-31", "2000-01-01"), ("9999-12-31", "0001-01-01")],
)
def test_days_at_the_ends_of_the_calendar_are_a_problem_that_is_told(
    acme: Furnished, client: Client, zone: str, first: str, last: str
) -> None:
    Tenant.objects.update(time_zone=zone)
    for granularity in ("minute", "day"):
        asked = f"range=custom&from={first}&to={last}&granularity={granularity}"
        page = client.get(f"/t/acme/usage/?{asked}")
        assert (page.status_code, bool(page.context["usage"].query.problem)) == (200, True)
        assert client.get(f"/t/acme/usage.csv?{asked}").status_code == 200


def test_a_service_that_refuses_is_told_on_the_page_and_is_no_error(
    acme: Furnished, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every route that is posted to, with every service it calls refusing."""

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise Conflict("somebody else was faster")

    for name in ("issue_api_key", "change_api_key", "rotate_api_key", "disable_api_key", "revoke_api_key"):
        monkeypatch.setattr(f"dashboard.views.keys.{name}", refuse)
    for name in ("add_endpoint", "change_endpoint", "send_test", "resend", "remove_endpoint"):
        monkeypatch.setattr(f"dashboard.views.webhooks.service.{name}", refuse)
    for name in ("change_role", "remove_member", "transfer_ownership", "leave"):
        monkeypatch.setattr(f"dashboard.views.members.service.{name}", refuse)
    for name in ("send_invitation", "resend_invitation", "revoke_invitation"):
        monkeypatch.setattr(f"dashboard.views.members.{name}", refuse)
    monkeypatch.setattr("dashboard.views.tenant_settings.choose_plan", refuse)
    monkeypatch.setattr("dashboard.views.tenant_settings.set_limits", refuse)
    monkeypatch.setattr("dashboard.views.limits.set_limits", refuse)
    monkeypatch.setattr("dashboard.views.playground.mint_ticket", refuse)
    viewer, t = acme.people["viewer"], "/t/acme"
    posts = [
        (f"{t}/keys/new/", {"name": "x", "scopes": "inference"}),
        (f"{t}/keys/{acme.key.id}/", {"name": "x", "scopes": "inference"}),
        (f"{t}/keys/{acme.key.id}/rotate/", {"overlap_h": "24"}),
        (f"{t}/keys/{acme.key.id}/switch/", {}),
        (f"{t}/keys/{acme.key.id}/revoke/", {"confirm": acme.key.name}),
        (f"{t}/webhooks/", {"url": "https://x.example/h", "events": "key.expiring"}),
        (f"{t}/webhooks/{acme.endpoint.id}/switch/", {}),
        (f"{t}/webhooks/{acme.endpoint.id}/test/", {}),
        (f"{t}/webhooks/{acme.endpoint.id}/delete/", {"confirm": acme.endpoint.url}),
        (f"{t}/members/invite/", {"email": "x@x.example", "role": "viewer"}),
        (f"{t}/members/{viewer.id}/role/", {"role": "developer"}),
        (f"{t}/members/{viewer.id}/remove/", {"confirm": str(viewer)}),
        (f"{t}/members/{viewer.id}/transfer/", {"confirm": "acme"}),
        (f"{t}/members/leave/", {"confirm": "acme"}),
        (f"{t}/settings/", {"time_zone": "UTC"}),
        (f"{t}/settings/plan/", {"plan": "free", "confirm": "free"}),
        (f"{t}/limits/", {"requests_per_minute": "5"}),
    ]
    for address, data in posts:
        page = client.post(address, {**form_nonce(), **data}, follow=True)
        assert page.status_code in {200, 400}, address
        assert "Somebody else was faster" in page.content.decode(), address
    ticket = client.post(f"{t}/playground/ticket/", {"nonce": "x"}, content_type="application/json")
    assert (ticket.status_code, ticket.json()) == (409, {"error": "somebody else was faster"})
    assert ApiKey.unscoped.filter(revoked_at=None, tenant=acme.tenant).count() == 4
