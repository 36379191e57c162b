"""Mails of accounts: their links lead to this site whatever a request claims, and their words name the product."""

import pytest
from django.test import Client
from pytest_django import Settings

from tests.dashboard.forms import form_nonce
from tests.dashboard.test_accounts import EMAIL, PASSWORD, signed_up
from workers.models import Mail

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def site(settings: Settings) -> None:
    settings.EMAIL_BACKEND = "workers.mail_backend.OutboxBackend"
    settings.ALLOWED_HOSTS = ["*"]
    settings.SITE_URL = "https://headway.example"


def test_no_mail_takes_its_links_or_its_name_from_the_host_a_request_claims() -> None:
    signed_up(Client())
    for email in (EMAIL, "nobody@example.com"):
        for path in ("/accounts/password/reset/", "/accounts/signup/"):
            Client(headers={"host": "evil.example:8000"}).post(path, {**form_nonce(), "email": email, "password1": PASSWORD})
    client = Client(headers={"host": "evil.example"})
    client.post("/accounts/login/", {"login": EMAIL, "password": PASSWORD})
    client.post("/accounts/reauthenticate/", {"password": PASSWORD})
    client.post(
        "/accounts/password/change/",
        {"oldpassword": PASSWORD, "password1": "another of steel", "password2": "another of steel"},
    )
    client.post("/accounts/email/", {"action_add": "", "email": "second@example.com"})
    mails = list(Mail.objects.all())
    assert len(mails) >= 6
    for mail in mails:
        assert "evil" not in mail.text + mail.subject, mail.text
        assert "Headway" in mail.text, mail.text
        assert "testserver" not in mail.text, mail.text
    links = [mail.text for mail in mails if "http" in mail.text]
    assert len(links) >= 3
    assert all("https://headway.example/accounts/" in text for text in links)
