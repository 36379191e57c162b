"""New keys and signing secrets: shown on the page after the one that made them, and to whoever reloads it no more."""

import re
from urllib.parse import unquote

import pytest
from django.contrib.sessions.models import Session
from django.test import Client

from tenants.models import ApiKey, WebhookEndpoint
from tests.dashboard.forms import form_nonce
from tests.dashboard.furnished import Furnished, furnish

pytestmark = pytest.mark.django_db

SECRETS = re.compile(r"hw_live_\w{40,}|whsec_[\w+/=-]{20,}")


@pytest.fixture
def acme() -> Furnished:
    return furnish(num_requests=1)


@pytest.fixture
def client(acme: Furnished) -> Client:
    found = Client()
    found.force_login(acme.people["owner"])
    return found


def posts(acme: Furnished) -> list[tuple[str, dict[str, str], str]]:
    return [
        ("/t/acme/keys/new/", {"name": "one", "scopes": "inference"}, "/t/acme/keys/made/"),
        (f"/t/acme/keys/{acme.key.id}/rotate/", {"overlap_h": "0"}, "/t/acme/keys/made/"),
        ("/t/acme/webhooks/", {"url": "https://x.example/h", "events": "key.expiring"}, "/t/acme/webhooks/"),
    ]


@pytest.mark.parametrize("number", range(3))
def test_a_secret_is_shown_once_and_a_page_that_is_reloaded_makes_no_second(
    acme: Furnished, client: Client, number: int
) -> None:
    path, data, page = posts(acme)[number]
    made = client.post(path, {**form_nonce(), **data})
    assert (made.status_code, made["location"]) == (302, page)
    halves = str([each.get_decoded() for each in Session.objects.all()]) + unquote(str(made.cookies)) + made.content.decode()
    rows = (ApiKey.unscoped.count(), WebhookEndpoint.unscoped.count())
    first = client.get(page)
    found = SECRETS.findall(first.content.decode())
    assert first.status_code == 200 and found
    assert "no-store" in first["cache-control"]
    assert found[0] not in halves and found[0].rpartition("_")[0] not in halves
    again = client.get(page, follow=True)
    assert again.status_code == 200 and not SECRETS.search(again.content.decode())
    assert (ApiKey.unscoped.count(), WebhookEndpoint.unscoped.count()) == rows


def test_another_browser_of_the_same_person_another_organisation_and_a_forged_cookie_show_nothing(
    acme: Furnished, client: Client
) -> None:
    path, data, page = posts(acme)[0]
    client.post(path, {**form_nonce(), **data})
    other = Client()
    other.force_login(acme.people["owner"])
    other.cookies["shown_once_key"] = client.cookies["shown_once_key"].value
    assert not SECRETS.search(other.get(page, follow=True).content.decode())
    client.cookies["shown_once_key"] = "00" * 60
    assert not SECRETS.search(client.get(page, follow=True).content.decode())
