"""The Redis-protocol server is away, or takes connections and never answers: people log in all the same, at once."""

import socket
import time
from collections.abc import Iterator

import pytest
from celery import Celery
from django.core.cache import cache, caches
from django.test import Client
from pytest_django import Settings

from headway import cache as site_cache
from headway.circuit import LEFT_ALONE_S, Circuit
from headway.settings import CACHES
from tests.dashboard.test_accounts import EMAIL, PASSWORD, signed_up
from workers.models import Mail, OutboxEntry
from workers.services import outbox

pytestmark = pytest.mark.django_db(transaction=True)

MAX_FIRST_S, MAX_NEXT_S = 3.0, 0.5


@pytest.fixture(params=["away", "hangs"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if request.param == "hangs":
            listener.listen(64)
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(autouse=True)
def away(address: str, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.EMAIL_BACKEND = "workers.mail_backend.OutboxBackend"
    settings.CACHES = {"default": {**CACHES["default"], "LOCATION": address}}
    assert isinstance(caches["default"], site_cache.SiteCache)
    monkeypatch.setattr(site_cache, "circuit", Circuit("cache"))
    app = Celery("away")
    app.config_from_object("django.conf:settings", namespace="CELERY")
    app.conf.broker_url = address
    monkeypatch.setattr(outbox, "app", app)
    monkeypatch.setattr(outbox, "broker", Circuit("broker"))


def took_s(client: Client, path: str, data: dict[str, str]) -> float:
    began_s = time.monotonic()
    assert client.post(path, data).status_code in {200, 302}, path
    return time.monotonic() - began_s


def test_everything_a_stranger_may_post_is_answered_and_its_mail_is_kept_for_the_sweep() -> None:
    began_s = time.monotonic()
    signed_up(Client())
    assert time.monotonic() - began_s < MAX_FIRST_S
    for path, data in (
        ("/accounts/login/", {"login": EMAIL, "password": PASSWORD}),
        ("/accounts/login/", {"login": EMAIL, "password": "wrong"}),
        ("/accounts/password/reset/", {"email": EMAIL}),
        ("/accounts/signup/", {"email": "other@example.com", "password1": PASSWORD}),
        ("/accounts/confirm-email/", {"code": "x"}),
    ):
        assert took_s(Client(), path, data) < MAX_NEXT_S, path
    waiting = OutboxEntry.objects.filter(done_at=None, told_at=None).count()
    assert waiting == Mail.objects.count() >= 3


def test_whoever_is_logged_in_goes_on_to_work() -> None:
    client = Client()
    signed_up(client)
    assert took_s(client, "/start/", {"name": "acme"}) < MAX_FIRST_S
    assert took_s(client, "/t/acme/members/invite/", {"email": "bob@example.com", "role": "viewer"}) < MAX_NEXT_S
    assert took_s(client, "/t/acme/keys/new/", {"name": "one", "scopes": "inference"}) < MAX_NEXT_S
    assert client.get("/t/acme/keys/").status_code == 200


def test_a_cache_that_is_away_is_an_empty_one_and_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING"):
        cache.set("a", 1)
        assert (cache.get("a", 7), cache.add("a", 1), cache.has_key("a")) == (7, True, False)
        assert (cache.get_many(["a"]), cache.delete("a"), cache.touch("a"), cache.incr("a")) == ({}, False, False, 1)
        cache.set_many({"a": 1})
        cache.delete_many(["a"])
        cache.clear()
    assert [record.name for record in caplog.records] == ["headway.circuit"]


def test_one_caller_at_a_time_finds_out_whether_a_server_is_back() -> None:
    now_s = 0.0
    circuit = Circuit("x", clock=lambda: now_s)
    assert circuit.asks()
    circuit.failed(OSError())
    assert not circuit.asks()
    now_s = LEFT_ALONE_S
    assert [circuit.asks() for _ in range(3)] == [True, False, False]
    circuit.answered()
    assert [circuit.asks() for _ in range(3)] == [True] * 3
