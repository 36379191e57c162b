"""An operator whose account has a second factor has used it: where they log in, on their pages, over REST."""

from typing import Any

import pytest
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import (
    TOTP,
    format_hotp_value,
    generate_totp_secret,
    hotp_value,
    yield_hotp_counters_from_time,
)
from django.core.cache import cache
from django.test import Client, override_settings

from tenants.models import User
from tests.dashboard.operators import operator

__all__ = ["operator"]
pytestmark = pytest.mark.django_db
LOGIN, REST, PAGE = "/admin/login/", "/api/v1/operator/tenants/", "/operator/"


@pytest.fixture(autouse=True)
def fresh_counts() -> None:
    cache.clear()


@pytest.fixture
def secret(operator: User) -> str:
    """The account's second factor."""
    made: str = generate_totp_secret()
    TOTP.activate(operator, made)
    RecoveryCodes.activate(operator)
    return made


def code_of(secret: str) -> str:
    return str(format_hotp_value(hotp_value(secret, next(iter(yield_hotp_counters_from_time())))))


def log_in(client: Client, **fields: str) -> Any:
    return client.post(LOGIN, {"username": "operator", "password": "x", "next": PAGE, **fields})


def reached(client: Client) -> tuple[int, int]:
    """The REST API, and a page."""
    return client.get(REST).status_code, client.get(PAGE).status_code


def test_a_password_alone_opens_nothing_where_the_account_has_a_second_factor(secret: str) -> None:
    client = Client()
    for wrong in ({}, {"code": ""}, {"code": "000000"}, {"code": "x" * 65}, {"code": code_of(secret), "password": "y"}):
        assert log_in(client, **wrong).status_code == 200, wrong
        assert reached(client) == (401, 302) and "_auth_user_id" not in client.session, wrong


def test_a_one_time_password_or_a_recovery_code_opens_pages_and_rest(operator: User, secret: str) -> None:
    client, other = Client(), Client()
    answer = log_in(client, code=code_of(secret))
    assert (answer.status_code, answer["location"]) == (302, PAGE)
    assert reached(client) == (200, 200)
    assert log_in(other, code=code_of(secret)).status_code == 200  # a code is used once
    assert log_in(other, code=RecoveryCodes.activate(operator).get_unused_codes()[0]).status_code == 302
    assert reached(other) == (200, 200)


def test_who_has_none_logs_in_as_before(operator: User) -> None:
    client = Client()
    assert "One-time code" in client.get(LOGIN).content.decode()
    assert log_in(client).status_code == 302
    assert reached(client) == (200, 200)


def test_a_session_from_before_it_was_set_up_gives_the_code_first(operator: User) -> None:
    client = Client()
    log_in(client)
    made = generate_totp_secret()
    TOTP.activate(operator, made)
    refused = client.get(REST)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "second_factor_needed")
    for page in (PAGE, "/operator/prices/"):
        assert client.get(page)["location"] == f"/accounts/2fa/reauthenticate/?next={page.replace('/', '%2F')}"
    assert client.post("/operator/close/now/?month=2026-10", {"confirm": "2026-10"})["location"].endswith("next=%2Foperator%2F")
    assert client.get("/accounts/2fa/reauthenticate/?next=/operator/prices/").status_code == 200
    given = client.post("/accounts/2fa/reauthenticate/?next=/operator/prices/", {"code": code_of(made)})
    assert (given.status_code, given["location"]) == (302, "/operator/prices/")
    assert reached(client) == (200, 200)


@pytest.mark.usefixtures("one_minute")
@override_settings(FORM_POSTS_PER_MINUTE=5, TRUSTED_PROXY_HOPS=0)
def test_b48_passwords_of_operators_are_not_guessed_faster_than_anybodys(operator: User) -> None:
    client = Client(REMOTE_ADDR="198.51.100.7")
    found = [log_in(client, password=f"guess {n}").status_code for n in range(8)]
    assert found == [200] * 5 + [429] * 3
