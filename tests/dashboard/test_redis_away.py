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
from tests.dashboard.forms import form_nonce
from tests.dashboard.test_accounts import EMAIL, PASSWORD, signed_up
from workers.models import Mail, OutboxEntry
from workers.services import outbox

pytestmark = pytest.mark.django_db(transaction=True)

MAX_FIRST_S = 5.0
"""One wait for each of the two uses of the server, and a slow machine's work."""


class NoServer:
    """Where a server should be: nobody listens, or nobody answers, and then it is counted how often one was asked."""

    def __init__(self, listener: socket.socket, *, hangs: bool) -> None:
        self._listener = listener
        listener.bind(("127.0.0.1", 0))
        listener.setblocking(False)
        if hangs:
            listener.listen(64)
        self.hangs = hangs
        self.url = f"redis://127.0.0.1:{listener.getsockname()[1]}"

    def asked(self) -> int:
        """How often since the last look."""
        times = 0
        while self.hangs:
            try:
                self._listener.accept()[0].close()
            except BlockingIOError:
                break
            times += 1
        return times


@pytest.fixture(params=["away", "hangs"])
def server(request: pytest.FixtureRequest) -> Iterator[NoServer]:
    with socket.socket() as listener:
        yield NoServer(listener, hangs=request.param == "hangs")


def circuit(name: str) -> Circuit:
    """One whose time stands still: it asks once in a test, however slow the machine is."""
    return Circuit(name, clock=lambda: 0.0)


@pytest.fixture(autouse=True)
def away(server: NoServer, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.EMAIL_BACKEND = "workers.mail_backend.OutboxBackend"
    settings.CACHES = {"default": {**CACHES["default"], "LOCATION": server.url}}
    assert isinstance(caches["default"], site_cache.SiteCache)
    monkeypatch.setattr(site_cache, "circuit", circuit("cache"))
    app = Celery("away")
    app.config_from_object("django.conf:settings", namespace="CELERY")
    app.conf.broker_url = server.url
    monkeypatch.setattr(outbox, "app", app)
    monkeypatch.setattr(outbox, "broker", circuit("broker"))


def took_s(client: Client, path: str, data: dict[str, str]) -> float:
    began_s = time.monotonic()
    assert client.post(path, {**form_nonce(), **data}).status_code in {200, 302}, path
    return time.monotonic() - began_s


def test_everything_a_stranger_may_post_is_answered_and_its_mail_is_kept_for_the_sweep(server: NoServer) -> None:
    began_s = time.monotonic()
    signed_up(Client())
    assert time.monotonic() - began_s < MAX_FIRST_S
    assert bool(server.asked()) == server.hangs
    for path, data in (
        ("/accounts/login/", {"login": EMAIL, "password": PASSWORD}),
        ("/accounts/login/", {"login": EMAIL, "password": "wrong"}),
        ("/accounts/password/reset/", {"email": EMAIL}),
        ("/accounts/signup/", {"email": "other@example.com", "password1": PASSWORD}),
        ("/accounts/confirm-email/", {"code": "x"}),
    ):
        assert took_s(Client(), path, data) < MAX_FIRST_S, path
        assert not server.asked(), f"{path} waited for it"
    waiting = OutboxEntry.objects.filter(done_at=None, told_at=None).count()
    assert waiting == Mail.objects.count() >= 3


def test_whoever_is_logged_in_goes_on_to_work(server: NoServer) -> None:
    client = Client()
    signed_up(client)
    assert took_s(client, "/start/", {"name": "acme"}) < MAX_FIRST_S
    server.asked()
    took_s(client, "/t/acme/members/invite/", {"email": "bob@example.com", "role": "viewer"})
    took_s(client, "/t/acme/keys/new/", {"name": "one", "scopes": "inference"})
    assert client.get("/t/acme/keys/").status_code == 200
    assert not server.asked()


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
