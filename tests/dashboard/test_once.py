"""A form that makes something makes it once: posted twice, and posted twice at the same moment."""

import re
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.cache import cache
from django.db.models import Model
from django.test import Client
from django.utils import timezone

import dashboard
from dashboard.models import FormClaim
from dashboard.services.form_claims import KEPT, forget_old_claims
from tenants.models import ApiKey, Invitation, Tenant, WebhookDelivery, WebhookEndpoint
from tests.dashboard.forms import form_nonce
from tests.dashboard.furnished import Furnished, furnish
from tests.tenants.cast import person
from tests.tenants.test_at_once import at_once
from workers.models import Mail

pytestmark = pytest.mark.django_db(transaction=True)
PASSWORD = "an engine of brass and steam"


@pytest.fixture(autouse=True)
def no_broker_and_fresh_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    cache.clear()
    monkeypatch.setattr("workers.services.outbox.tell_broker", lambda entries: 0)


@pytest.fixture
def acme() -> Furnished:
    return furnish(num_requests=1)


@dataclass(frozen=True)
class Form:
    name: str
    path: str
    data: dict[str, Any]
    counted: type[Model]
    who: str = "owner"


FORMS = [
    Form("key", "/t/acme/keys/new/", {"name": "one", "scopes": "inference"}, ApiKey),
    Form("rotation", "/t/acme/keys/KEY/rotate/", {"overlap_h": "24"}, ApiKey),
    Form("invitation", "/t/acme/members/invite/", {"email": "new@example.com", "role": "viewer"}, Mail),
    Form("resent invitation", "/t/acme/members/invitations/INVITATION/resend/", {}, Mail),
    Form("webhook", "/t/acme/webhooks/", {"url": "https://x.example/h", "events": "key.expiring"}, WebhookEndpoint),
    Form("test event", "/t/acme/webhooks/WEBHOOK/test/", {}, WebhookDelivery),
    Form("organisation", "/start/", {"name": "globex"}, Tenant, "newcomer"),
    Form("account", "/accounts/signup/", {"email": "ada@lovelace.example", "password1": PASSWORD}, get_user_model(), "nobody"),
]


def client_for(acme: Furnished, form: Form) -> Client:
    client = Client()
    if form.who == "owner":
        client.force_login(acme.people["owner"])
    elif form.who == "newcomer":
        client.force_login(person("newcomer"))
    return client


def path_of(acme: Furnished, form: Form) -> str:
    invitation = Invitation.objects.for_tenant(acme.tenant).order_by("email").first()
    assert invitation is not None
    values = {"KEY": acme.key.id, "WEBHOOK": str(acme.endpoint.id), "INVITATION": str(invitation.id)}
    return re.sub("|".join(values), lambda found: values[found[0]], form.path)


def count(form: Form) -> int:
    rows = getattr(form.counted, "unscoped", form.counted._default_manager)
    return int(rows.count())


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_form_posted_twice_at_once_makes_one_thing(acme: Furnished, form: Form) -> None:
    client, path, nonce = client_for(acme, form), path_of(acme, form), form_nonce()
    others = [Client(), Client()]
    for other in others:
        other.cookies = client.cookies
    before, answers = count(form), Counter[int]()

    def post(other: Client) -> None:
        answers[other.post(path, {**nonce, **form.data}).status_code] += 1

    assert at_once(*[partial(post, other) for other in others]) == {"done": 2}
    assert answers == {302: 2}  # neither is an error: the second is led to what the first made
    assert count(form) == before + 1


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_form_posted_again_makes_nothing_and_one_without_a_nonce_neither(acme: Furnished, form: Form) -> None:
    client, path, nonce = client_for(acme, form), path_of(acme, form), form_nonce()
    before = count(form)
    for sent in ({}, {"form_nonce": "made up"}):
        assert client.post(path, {**sent, **form.data}).status_code in {200, 302, 400}
    assert count(form) == before
    for _ in range(3):
        assert client.post(path, {**nonce, **form.data}).status_code == 302
    assert count(form) == before + 1


def test_what_was_refused_can_be_corrected_and_sent_again_with_the_same_form(acme: Furnished) -> None:
    client, nonce = client_for(acme, FORMS[0]), form_nonce()
    refused = client.post("/t/acme/keys/new/", {**nonce, "name": "x", "scopes": "inference", "allowed_addresses": "nowhere"})
    assert refused.status_code == 200 and "nowhere" in refused.content.decode()
    assert client.post("/t/acme/keys/new/", {**nonce, "name": "x", "scopes": "inference"}).status_code == 302
    short = {"email": "ada@lovelace.example", "password1": "short"}
    stranger = Client()
    assert stranger.post("/accounts/signup/", {**nonce, **short}).status_code != 200  # that nonce was used above
    nonce = form_nonce()
    assert stranger.post("/accounts/signup/", {**nonce, **short}).status_code == 200
    assert stranger.post("/accounts/signup/", {**nonce, **short, "password1": PASSWORD}).status_code == 302
    assert get_user_model().objects.filter(email="ada@lovelace.example").count() == 1


def test_the_second_post_of_a_double_click_shows_the_key_that_the_first_made(acme: Furnished) -> None:
    client, data = client_for(acme, FORMS[0]), {**form_nonce(), "name": "one", "scopes": "inference"}
    client.post("/t/acme/keys/new/", data)
    page = client.post("/t/acme/keys/new/", data, follow=True)
    assert re.search(r"hw_live_\w{40,}", page.content.decode())


def test_old_claims_are_forgotten() -> None:
    for nonce, age in (("0" * 32, KEPT + timedelta(days=1)), ("1" * 32, timedelta(days=1))):
        FormClaim.objects.create(nonce=nonce)
        FormClaim.objects.filter(nonce=nonce).update(made_at=timezone.now() - age)
    assert forget_old_claims() == 1
    assert FormClaim.objects.get().nonce == "1" * 32


def test_every_form_whose_view_asks_for_a_nonce_carries_one(acme: Furnished) -> None:
    """Read from the pages as they are drawn."""
    client = client_for(acme, FORMS[0])
    drawn = {
        "/t/acme/keys/new/": 1,
        f"/t/acme/keys/{acme.key.id}/": 1,
        "/t/acme/members/": 3,
        "/t/acme/webhooks/": 1,
        f"/t/acme/webhooks/{acme.endpoint.id}/": 1,
        "/start/": 1,
    }
    nonces: list[str] = []
    for path, wanted in drawn.items():
        found = re.findall(r'name="form_nonce" value="([0-9a-f]{32})"', client.get(path).content.decode())
        assert len(found) == wanted, path
        nonces += found
    nonces += re.findall(r'name="form_nonce" value="([0-9a-f]{32})"', Client().get("/accounts/signup/").content.decode())
    assert len(set(nonces)) == len(nonces) == sum(drawn.values()) + 1
    views = Path(dashboard.__file__).parent / "views"
    assert sum(path.read_text().count("once(request)") for path in views.glob("*.py")) >= 6
