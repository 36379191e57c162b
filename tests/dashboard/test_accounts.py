"""Accounts: sign-up with a code by mail, log-in, reset, one-time passwords, and forms that count who posts them."""

import re
from urllib.parse import quote

import pytest
from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value, yield_hotp_counters_from_time
from django.core.cache import cache
from django.test import Client, override_settings
from pytest_django import Settings

from tenants.models import Membership, Tenant, User
from tenants.services.invitations import invite
from tests.dashboard.forms import form_nonce
from tests.tenants.cast import person, tenant_with
from workers.models import Mail

pytestmark = pytest.mark.django_db

EMAIL, PASSWORD = "ada@example.com", "an engine of brass"


@pytest.fixture(autouse=True)
def own_mail_and_fresh_counts(settings: Settings) -> None:
    settings.EMAIL_BACKEND = "workers.mail_backend.OutboxBackend"  # as in production; pytest-django sets another
    cache.clear()


def signed_up(client: Client) -> None:
    answer = client.post("/accounts/signup/", {**form_nonce(), "email": EMAIL, "password1": PASSWORD})
    assert answer.status_code == 302
    found = re.search(r"^\s*([A-Z0-9-]{6,9})\s*$", Mail.objects.get(to=EMAIL).text, re.MULTILINE)
    assert found is not None
    client.post("/accounts/confirm-email/", {"code": found[1]})


def test_a_newcomer_verifies_an_address_and_owns_an_organisation() -> None:
    client = Client()
    assert client.get("/")["location"] == "/accounts/login/?next=/"
    signed_up(client)
    assert EmailAddress.objects.get(email=EMAIL).verified
    assert client.get("/")["location"] == "/start/"
    assert client.post("/start/", {**form_nonce(), "name": "acme"})["location"] == "/t/acme/"
    member = Membership.unscoped.get(user__email=EMAIL)
    assert (member.tenant.name, member.role, member.tenant.plan.name) == ("acme", "owner", "free")
    assert client.get("/")["location"] == "/t/acme/"


def test_without_the_code_nobody_is_let_in() -> None:
    client = Client()
    client.post("/accounts/signup/", {**form_nonce(), "email": EMAIL, "password1": PASSWORD})
    client.post("/accounts/confirm-email/", {"code": "WRONG1"})
    assert client.get("/start/").status_code == 302
    client.post("/accounts/login/", {"login": EMAIL, "password": PASSWORD})
    assert client.get("/start/").status_code == 302
    assert not Tenant.objects.exists()


def test_passwords_are_kept_with_argon2() -> None:
    with override_settings(PASSWORD_HASHERS=["django.contrib.auth.hashers.Argon2PasswordHasher"]):
        signed_up(Client())
        assert User.objects.get(email=EMAIL).password.startswith("argon2")


def test_a_known_address_is_not_told_from_an_unknown_one() -> None:
    signed_up(Client())
    answers = [Client().post("/accounts/password/reset/", {"email": email}) for email in (EMAIL, "nobody@example.com")]
    assert {(answer.status_code, answer["location"]) for answer in answers} == {(302, "/accounts/password/reset/done/")}
    cache.clear()  # mails to one address are three minutes apart
    again = Client().post("/accounts/signup/", {**form_nonce(), "email": EMAIL, "password1": PASSWORD})
    assert (again.status_code, again["location"]) == (302, "/accounts/confirm-email/")


def test_a_password_is_reset_by_mail() -> None:
    signed_up(Client())
    client = Client()
    client.post("/accounts/password/reset/", {"email": EMAIL})
    link = re.search(r"https?://[^/\s]+(/accounts/password/reset/key/\S+)", Mail.objects.filter(to=EMAIL).latest("id").text)
    assert link is not None
    page = client.get(link[1], follow=True)
    done = client.post(page.redirect_chain[-1][0], {"password1": "another of steel", "password2": "another of steel"})
    assert done.status_code == 302
    assert Client().post("/accounts/login/", {"login": EMAIL, "password": PASSWORD}).status_code == 200
    assert Client().post("/accounts/login/", {"login": EMAIL, "password": "another of steel"}).status_code == 302


def test_one_time_passwords_are_asked_for_once_they_are_on_with_recovery_codes() -> None:
    client = Client()
    signed_up(client)
    client.post("/accounts/reauthenticate/", {"password": PASSWORD})
    page = client.get("/accounts/2fa/totp/activate/")
    assert page.status_code == 200
    secret = client.session["mfa.totp.secret"]
    code = format_hotp_value(hotp_value(secret, next(iter(yield_hotp_counters_from_time()))))
    assert client.post("/accounts/2fa/totp/activate/", {"code": code}).status_code == 302
    kinds = set(Authenticator.objects.filter(user__email=EMAIL).values_list("type", flat=True))
    assert kinds == {"totp", "recovery_codes"}

    other = Client()
    asked = other.post("/accounts/login/", {"login": EMAIL, "password": PASSWORD})
    assert asked["location"] == "/accounts/2fa/authenticate/"
    assert other.get("/start/").status_code == 302
    other.post("/accounts/2fa/authenticate/", {"code": "000000"})
    assert other.get("/start/").status_code == 302
    codes = Authenticator.objects.get(user__email=EMAIL, type="recovery_codes").wrap().get_unused_codes()
    other.post("/accounts/2fa/authenticate/", {"code": codes[0]})
    assert other.get("/start/").status_code == 200


@pytest.mark.parametrize("path", ["/accounts/login/", "/accounts/signup/", "/accounts/password/reset/"])
@pytest.mark.usefixtures("one_minute")
@override_settings(FORM_POSTS_PER_MINUTE=5, TRUSTED_PROXY_HOPS=0)
def test_b48_a_forged_forwarded_address_buys_no_more_posts(path: str) -> None:
    client = Client(REMOTE_ADDR="198.51.100.7")
    found = [
        client.post(
            path, {"login": f"a{n}@x.example", "email": f"a{n}@x.example", "password": "x"}, HTTP_X_FORWARDED_FOR=f"10.0.0.{n}"
        )
        for n in range(8)
    ]
    assert [answer.status_code == 429 for answer in found] == [False] * 5 + [True] * 3
    assert found[-1]["retry-after"] == "60"
    assert client.get(path).status_code == 200  # looking is not limited


@pytest.mark.usefixtures("one_minute")
@override_settings(FORM_POSTS_PER_MINUTE=3, TRUSTED_PROXY_HOPS=1)
def test_b48_two_people_behind_our_proxy_are_told_apart() -> None:
    client = Client(REMOTE_ADDR="127.0.0.1")

    def post(forwarded: str) -> int:
        return client.post("/accounts/password/reset/", {"email": "x"}, HTTP_X_FORWARDED_FOR=forwarded).status_code

    assert [post("203.0.113.1") for _ in range(4)][-1] == 429
    assert post("203.0.113.2") != 429
    assert post("1.2.3.4, 203.0.113.1") == 429  # what the sender wrote before our proxy's entry counts for nothing


def test_b73_a_disabled_person_and_a_demoted_one_are_refused_on_every_page_at_once() -> None:
    client = Client()
    signed_up(client)
    client.post("/start/", {**form_nonce(), "name": "acme"})
    assert client.get("/t/acme/keys/new/").status_code == 200
    Membership.unscoped.filter(user__email=EMAIL).update(role="viewer")
    assert client.get("/t/acme/keys/new/").status_code == 403
    Tenant.objects.update(suspended_at="2026-01-01T00:00:00Z")
    assert client.get("/t/acme/").status_code == 404
    Tenant.objects.update(suspended_at=None)
    User.objects.update(is_active=False)
    assert client.get("/t/acme/")["location"].startswith("/accounts/login/")


def test_the_admin_has_a_looser_policy_than_pages_and_still_runs_no_inline_script() -> None:
    User.objects.create_superuser("operator", password="x")
    client = Client()
    client.login(username="operator", password="x")
    admin, page = client.get("/admin/")["content-security-policy"], client.get("/start/")["content-security-policy"]
    assert "style-src 'self' 'unsafe-inline'" in admin
    assert "script-src 'self'" in admin and "script-src 'self' 'unsafe" not in admin
    assert "unsafe" not in page


def test_an_invited_stranger_who_signs_up_ends_at_the_invitation() -> None:
    tenant = tenant_with("acme", owner=person("ann"))
    token = invite(tenant=tenant, email=EMAIL, role="viewer", actor="test", actor_role="owner").token
    client, address = Client(), f"/invitations/{token}/"
    asked = client.get(address)["location"]
    assert asked == f"/accounts/login/?next={address}"
    assert f"/accounts/signup/?next={quote(address, safe='')}" in client.get(asked).content.decode()
    Mail.objects.all().delete()
    client.post(f"/accounts/signup/?next={address}", {**form_nonce(), "email": EMAIL, "password1": PASSWORD, "next": address})
    found = re.search(r"^\s*([A-Z0-9-]{6,9})\s*$", Mail.objects.get(to=EMAIL).text, re.MULTILINE)
    assert found is not None
    assert client.post("/accounts/confirm-email/", {"code": found[1]})["location"] == address
    assert client.post(address)["location"] == "/t/acme/"
    assert client.get("/t/acme/").status_code == 200


def test_an_invitation_opens_for_the_person_it_was_sent_to_alone() -> None:
    tenant = tenant_with("acme", owner=person("ann"))
    token = invite(tenant=tenant, email="grace@example.com", role="viewer", actor="test", actor_role="owner").token
    client = Client()
    signed_up(client)
    refused = client.post(f"/invitations/{token}/")
    assert refused.status_code == 403
    assert "grace@example.com" in refused.content.decode()
    assert client.get("/t/acme/").status_code == 404
    assert client.get("/invitations/made-up/").status_code == 404


def test_signing_up_answers_the_same_for_every_address_however_often_and_fills_no_ones_mailbox() -> None:
    signed_up(Client())  # a moment ago: a mail went to this address
    found = {}
    for email in (EMAIL, "nobody@example.com"):
        answers = []
        for _ in range(8):
            client = Client()
            answer = client.post("/accounts/signup/", {**form_nonce(), "email": email, "password1": PASSWORD})
            answers.append((answer.status_code, answer.get("location"), client.get("/accounts/confirm-email/").status_code))
        found[email] = answers
    assert set(found[EMAIL]) == set(found["nobody@example.com"]) == {(302, "/accounts/confirm-email/", 200)}
    assert Mail.objects.filter(to=EMAIL).count() <= 5 and Mail.objects.filter(to="nobody@example.com").count() <= 5


def test_a_name_for_log_in_has_nothing_to_do_with_an_address() -> None:
    """Long addresses that begin alike, and an address that its owner has left, can be signed up with."""
    start = "a" * 64 + "@" + ".".join(["b" * 60] * 2)
    for email in (f"{start}.example.com", f"{start}.example.org"):
        assert Client().post("/accounts/signup/", {**form_nonce(), "email": email, "password1": PASSWORD}).status_code == 302
    signed_up(Client())
    user = User.objects.get(email=EMAIL)
    assert EMAIL.partition("@")[0] not in user.username
    assert str(user) == EMAIL
    EmailAddress.objects.filter(user=user).update(email="elsewhere@example.com")
    User.objects.filter(pk=user.pk).update(email="elsewhere@example.com")
    Mail.objects.all().delete()
    signed_up(Client())
    assert User.objects.filter(email=EMAIL).exclude(pk=user.pk).count() == 1


def test_the_longest_address_founds_an_organisation() -> None:
    """The audit log's columns are shorter than an address may be."""
    email = "a" * 64 + "@" + ".".join(["b" * 60] * 3) + ".com"
    user = User.objects.create_user(username="long", email=email)
    client = Client()
    client.force_login(user)
    assert client.post("/start/", {**form_nonce(), "name": "acme"})["location"] == "/t/acme/"
