"""Tenants' webhooks: told once, signed, tried again, shown, sent again, and never to an address inside."""

import hashlib
import hmac
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from django.utils import timezone

from billing.services.ledger import record_usage
from headway.errors import Conflict, InvalidInput
from inference.models import Model
from tenants.errors import UnknownWebhook
from tenants.models import EventType, LimitKind, Tenant, WebhookDelivery, WebhookEndpoint, WebhookEvent
from tenants.services import webhook_delivery
from tenants.services.alerts import announce_retirement, raise_budget_alerts, raise_expiry_alerts
from tenants.services.keys import issue_api_key, revoke_api_key, rotate_api_key
from tenants.services.terms import set_limits
from tenants.services.webhook_addresses import AddressInside, is_public
from tenants.services.webhooks import (
    add_endpoint,
    change_endpoint,
    delivery_of,
    forget_old_deliveries,
    remove_endpoint,
    renew_secret,
    resend,
    send_test,
    tell_webhooks,
)
from tests.inference.gateway.usage_drafts import draft
from tests.tenants.cast import person, tenant_with
from tests.workers.broker import Broker
from workers.effects import EFFECTS
from workers.models import OutboxEntry
from workers.services import outbox

pytestmark = pytest.mark.django_db
ALL_EVENTS = ["budget.reached", "key.expiring", "model.retiring"]


@pytest.fixture(autouse=True)
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(monkeypatch)


@pytest.fixture
def acme() -> Tenant:
    return tenant_with("acme", owner=person("ann"))


class Receiver:
    """A web server on loopback that answers as it is told; found through a resolver that the test replaces."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.requests: list[bytes] = []
        self.tls: ssl.SSLContext | None = None
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            if self.tls is not None:
                try:
                    connection = self.tls.wrap_socket(connection, server_side=True)
                except OSError:  # the client did not like what it saw
                    connection.close()
                    continue
            with connection:
                self.requests.append(_whole_request(connection))
                answer = self.answers.pop(0) if self.answers else b"HTTP/1.1 204 No Content\r\n\r\n"
                if answer == b"drip":
                    _drip(connection)
                else:
                    connection.sendall(answer)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)


def self_signed(name: str, folder: Path) -> Path:
    """A certificate with its key, in one file."""
    key, subject = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(*plain))
    return path


def _whole_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def _drip(connection: socket.socket) -> None:
    """A byte now and then, for as long as somebody listens."""
    try:
        for byte in b"HTTP/1.1 200 OK\r\n" + b"x-header: y\r\n" * 1_000:
            connection.sendall(bytes([byte]))
            time.sleep(0.02)
    except OSError:
        pass


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """`hooks.example` is it: the check of addresses is tested on its own."""
    made = Receiver()
    monkeypatch.setattr(webhook_delivery, "resolve_public", lambda parts: ("127.0.0.1", made.port))
    yield made
    made.close()


def endpoint(tenant: Tenant, url: str = "http://hooks.example/in?x=1", events: list[str] | None = None) -> WebhookEndpoint:
    return add_endpoint(tenant=tenant, url=url, events=events or ALL_EVENTS, actor="test").endpoint


def told(tenant: Tenant, occasion: str = "o1") -> WebhookEvent | None:
    return tell_webhooks(tenant=tenant, type=EventType.KEY_EXPIRING, occasion=occasion, data={"key": "k1"})


def carry_out_due() -> None:
    OutboxEntry.objects.filter(done_at=None).update(due_at=timezone.now())
    for entry in OutboxEntry.objects.filter(done_at=None):
        outbox.carry_out(entry.id, EFFECTS)


def only_delivery(tenant: Tenant) -> WebhookDelivery:
    found: WebhookDelivery = WebhookDelivery.objects.for_tenant(tenant).get()
    return found


# -- sending


def test_a_delivery_is_signed_so_that_its_receiver_can_tell(acme: Tenant, receiver: Receiver) -> None:
    made = add_endpoint(tenant=acme, url="http://hooks.example/in?x=1", events=["key.expiring"], actor="test")
    event = told(acme)
    carry_out_due()
    assert event is not None
    head, _, body = receiver.requests[0].partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = {line.split(": ", 1)[0].lower(): line.split(": ", 1)[1] for line in lines[1:]}
    assert (lines[0], headers["host"]) == ("POST /in?x=1 HTTP/1.1", "hooks.example")
    at, _, digest = headers["headway-signature"].partition(",v1=")
    expected = hmac.new(made.secret.encode(), at.removeprefix("t=").encode() + b"." + body, hashlib.sha256).hexdigest()
    assert digest == expected
    assert abs(int(at.removeprefix("t=")) - time.time()) < 10
    sent = json.loads(body)
    assert (sent["id"], sent["type"], sent["tenant"], sent["data"]) == (str(event.id), "key.expiring", "acme", {"key": "k1"})
    delivery = only_delivery(acme)
    assert (delivery.state, delivery.last_status, delivery.attempts) == ("delivered", 204, 1)
    assert headers["headway-delivery-id"] == str(delivery.id)


def test_what_is_not_taken_is_tried_again_until_it_is(acme: Tenant, receiver: Receiver) -> None:
    endpoint(acme)
    receiver.answers += [b"HTTP/1.1 500 Oops\r\n\r\n", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"]
    told(acme)
    seen = []
    for _ in range(4):
        carry_out_due()
        delivery = only_delivery(acme)
        seen.append((delivery.state, delivery.attempts, delivery.last_status))
    assert seen == [("pending", 1, 500), ("pending", 2, None), ("delivered", 3, 200), ("delivered", 3, 200)]
    assert len({request.partition(b"headway-delivery-id: ")[2][:36] for request in receiver.requests}) == 1


def test_a_redirect_is_not_followed(acme: Tenant, receiver: Receiver) -> None:
    endpoint(acme)
    receiver.answers += [b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1/\r\n\r\n"]
    told(acme)
    carry_out_due()
    assert (only_delivery(acme).last_error, len(receiver.requests)) == ("the endpoint answered 302", 1)


def test_an_endpoint_that_drips_is_cut(acme: Tenant, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_delivery, "WHOLE_S", 0.3)
    endpoint(acme)
    receiver.answers += [b"drip"]
    told(acme)
    started_s = time.monotonic()
    carry_out_due()
    assert time.monotonic() - started_s < 5
    assert only_delivery(acme).last_error.startswith("the endpoint cannot be reached")


@pytest.mark.parametrize(
    ("name", "is_trusted", "state"),
    [("hooks.example", True, "delivered"), ("hooks.example", False, "pending"), ("other.example", True, "pending")],
)
def test_a_certificate_must_be_its_own_and_trusted(
    acme: Tenant, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, is_trusted: bool, state: str
) -> None:
    certificate = self_signed(name, tmp_path)
    receiver.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    receiver.tls.load_cert_chain(certificate)
    if is_trusted:
        default = ssl.create_default_context
        monkeypatch.setattr(ssl, "create_default_context", lambda: default(cafile=str(certificate)))
    endpoint(acme, "https://hooks.example/")
    told(acme)
    carry_out_due()
    assert only_delivery(acme).state == state
    assert len(receiver.requests) == (state == "delivered")


def test_after_enough_failures_it_has_failed_and_may_be_sent_again(
    acme: Tenant, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_delivery, "MAX_ATTEMPTS", 2)
    endpoint(acme)
    receiver.answers += [b"HTTP/1.1 503 No\r\n\r\n"] * 2
    told(acme)
    for _ in range(3):
        carry_out_due()
    delivery = only_delivery(acme)
    assert (delivery.state, delivery.attempts, len(receiver.requests)) == ("failed", 2, 2)
    resend(tenant=acme, delivery_id=str(delivery.id), actor="user:ann")
    with pytest.raises(Conflict):
        resend(tenant=acme, delivery_id=str(delivery.id), actor="user:ann")
    carry_out_due()
    assert (only_delivery(acme).state, len(receiver.requests)) == ("delivered", 3)


def test_a_disabled_endpoint_gets_nothing(acme: Tenant, receiver: Receiver) -> None:
    one = endpoint(acme)
    told(acme)
    change_endpoint(tenant=acme, endpoint_id=str(one.id), is_enabled=False, actor="test")
    carry_out_due()
    assert (only_delivery(acme).state, receiver.requests) == ("failed", [])
    assert told(acme, "o2") is not None
    assert WebhookDelivery.objects.for_tenant(acme).count() == 1


def test_a_removed_endpoint_takes_its_deliveries_with_it(acme: Tenant, receiver: Receiver) -> None:
    one = endpoint(acme)
    told(acme)
    remove_endpoint(tenant=acme, endpoint_id=str(one.id), actor="test")
    carry_out_due()
    assert receiver.requests == []
    assert not OutboxEntry.objects.filter(done_at=None).exists()


# -- addresses


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.9.9.9", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "240.0.0.1"),
        *("::1", "::", "fe80::1", "fc00::1", "ff02::1", "2001:db8::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1"),
        *("64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a00:1::"),
    ],
)
def test_addresses_inside_are_refused_in_every_spelling(acme: Tenant, address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(AddressInside):
        add_endpoint(tenant=acme, url=f"https://{host}/", events=ALL_EVENTS, actor="test")
    assert not WebhookEndpoint.unscoped.exists()


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_ones_are_taken(address: str) -> None:
    import ipaddress

    assert is_public(ipaddress.ip_address(address))


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[Any]:
    asked: list[Any] = []

    def getaddrinfo(host: str, port: int, **_options: Any) -> list[Any]:
        asked.append(host)
        return [(2, 1, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


@pytest.mark.parametrize("addresses", [("127.0.0.1",), ("8.8.8.8", "10.0.0.1"), ("fe80::1%eth0",)])
def test_a_name_that_leads_inside_is_never_connected_to(
    acme: Tenant, monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...]
) -> None:
    connected: list[Any] = []
    endpoint(acme, "https://looks-fine.example/")
    resolving(monkeypatch, *addresses)
    monkeypatch.setattr(socket, "create_connection", lambda *args, **_: connected.append(args))
    told(acme)
    carry_out_due()
    assert connected == []
    assert only_delivery(acme).last_error.endswith("leads to an address that is not public")


def test_the_connection_goes_to_the_address_that_was_checked(acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that says another address the second time (rebinding) is asked once only."""
    connected: list[Any] = []

    def connect(address: tuple[str, int], **_options: Any) -> Any:
        connected.append(address)
        raise ConnectionRefusedError

    endpoint(acme, "https://rebinding.example:8443/")
    asked = resolving(monkeypatch, "8.8.8.8")
    monkeypatch.setattr(socket, "create_connection", connect)
    told(acme)
    carry_out_due()
    assert (asked, connected) == (["rebinding.example"], [("8.8.8.8", 8443)])


@pytest.mark.parametrize(
    "url",
    [
        *("", "hooks.example", "ftp://hooks.example/", "https://", "https://user:pw@hooks.example/", "https://h.example/#x"),
        *("https://h.example:0/", "https://h.example:99999/", "https://h.example/a b", "https://hé.example/"),
        *("https://h.example/\r\nx: y", "https://[::1", f"https://h.example/{'x' * 500}", "javascript:alert(1)"),
    ],
)
def test_what_is_no_url_for_webhooks_is_refused(acme: Tenant, url: str) -> None:
    with pytest.raises(InvalidInput):
        add_endpoint(tenant=acme, url=url, events=ALL_EVENTS, actor="test")


@pytest.mark.parametrize("events", [[], ["test"], ["everything"]])
def test_events_are_those_there_are(acme: Tenant, events: list[str]) -> None:
    with pytest.raises(InvalidInput):
        add_endpoint(tenant=acme, url="https://hooks.example/", events=events, actor="test")


# -- whose


def test_endpoints_and_deliveries_of_another_tenant_are_not_found(acme: Tenant) -> None:
    globex, one = tenant_with("globex", owner=person("gus")), endpoint(acme)
    told(acme)
    delivery = only_delivery(acme)
    attempts: tuple[Callable[[], object], ...] = (
        lambda: change_endpoint(tenant=globex, endpoint_id=str(one.id), is_enabled=False, actor="x"),
        lambda: remove_endpoint(tenant=globex, endpoint_id=str(one.id), actor="x"),
        lambda: renew_secret(tenant=globex, endpoint_id=str(one.id), actor="x"),
        lambda: send_test(tenant=globex, endpoint_id=str(one.id), actor="x"),
        lambda: resend(tenant=globex, delivery_id=str(delivery.id), actor="x"),
        lambda: delivery_of(globex, "no uuid"),
    )
    for attempt in attempts:
        with pytest.raises(UnknownWebhook):
            attempt()
    assert told(globex, "theirs") is not None
    assert WebhookDelivery.objects.for_tenant(globex).count() == 0
    assert only_delivery(acme).state == "pending"


def test_a_test_event_goes_to_that_endpoint_alone(acme: Tenant, receiver: Receiver) -> None:
    one, _ = endpoint(acme), endpoint(acme, "http://other.example/")
    delivery = send_test(tenant=acme, endpoint_id=str(one.id), actor="user:ann")
    carry_out_due()
    assert (only_delivery(acme).pk, only_delivery(acme).state) == (delivery.pk, "delivered")
    assert len(receiver.requests) == 1


def test_a_renewed_secret_signs_from_then_on(acme: Tenant) -> None:
    one = endpoint(acme)
    renewed = renew_secret(tenant=acme, endpoint_id=str(one.id), actor="user:ann")
    assert renewed.secret != one.secret
    assert WebhookEndpoint.objects.for_tenant(acme).get().secret == renewed.secret


# -- what is told


def test_an_occasion_is_told_once(acme: Tenant) -> None:
    endpoint(acme)
    assert told(acme) is not None
    assert told(acme) is None
    assert WebhookDelivery.objects.for_tenant(acme).count() == 1


def test_keys_that_expire_are_told_a_week_and_a_day_before(acme: Tenant) -> None:
    endpoint(acme)
    now = timezone.now()
    key = issue_api_key(tenant=acme, name="ci", actor="test", expires_at=now + timedelta(days=10)).key
    issue_api_key(tenant=acme, name="for ever", actor="test")
    gone = issue_api_key(tenant=acme, name="gone", actor="test", expires_at=now + timedelta(days=10)).key
    revoke_api_key(key_id=gone.id, actor="test")
    counts = [raise_expiry_alerts(now + timedelta(days=days)) for days in (0, 2, 3.5, 4, 8, 9.5, 9.6, 11)]
    assert counts == [0, 0, 1, 0, 0, 1, 0, 0]
    events = WebhookEvent.objects.for_tenant(acme).order_by("created_at")
    assert [(event.data["key"], event.data["within_days"]) for event in events] == [(key.id, 7), (key.id, 1)]


def test_budgets_are_told_at_half_at_four_fifths_and_when_spent(acme: Tenant) -> None:
    endpoint(acme)
    key = issue_api_key(tenant=acme, name="ci", actor="test", limits={LimitKind.BUDGET: 1000}).key
    set_limits(tenant=acme, limits={LimitKind.BUDGET: 100_000}, actor="test")
    at = datetime(2026, 11, 15, 12, tzinfo=UTC)

    def spend(request_id: str, micros: int) -> int:
        record_usage(
            drafts=[
                draft(
                    request_id,
                    "done",
                    tenant_id=str(acme.id),
                    key_id=key.id,
                    ended_at_s=at.timestamp(),
                    amount_picos=micros * 1_000_000,
                )
            ]
        )
        return raise_budget_alerts(at)

    assert [spend("r1", 499), spend("r2", 1), spend("r3", 0), spend("r4", 600)] == [0, 1, 0, 2]
    events = WebhookEvent.objects.for_tenant(acme).order_by("created_at")
    assert [(event.data["scope"], event.data["percent"]) for event in events] == [("key", 50), ("key", 80), ("key", 100)]
    assert raise_budget_alerts(at + timedelta(days=30)) == 0, "another month"


def test_what_a_rotated_key_spent_counts_for_its_successor(acme: Tenant) -> None:
    endpoint(acme)
    at = datetime(2026, 11, 15, 12, tzinfo=UTC)
    key = issue_api_key(tenant=acme, name="ci", actor="test", limits={LimitKind.BUDGET: 1000}).key
    spent = {"tenant_id": str(acme.id), "key_id": key.id, "ended_at_s": at.timestamp(), "amount_picos": 600_000_000}
    record_usage(drafts=[draft("r1", "done", **spent)])
    new = rotate_api_key(tenant=acme, key_id=key.id, overlap_h=0, actor="test").key
    raise_budget_alerts(at)
    assert [event.data["id"] for event in WebhookEvent.objects.for_tenant(acme)] == [new.id]


def test_a_raised_budget_is_told_anew(acme: Tenant) -> None:
    endpoint(acme)
    at = datetime(2026, 11, 15, 12, tzinfo=UTC)
    set_limits(tenant=acme, limits={LimitKind.BUDGET: 100}, actor="test")
    record_usage(drafts=[draft("r1", "done", tenant_id=str(acme.id), ended_at_s=at.timestamp(), amount_picos=100_000_000)])
    assert raise_budget_alerts(at) == 3
    set_limits(tenant=acme, limits={LimitKind.BUDGET: 200}, actor="test")
    assert raise_budget_alerts(at) == 1


def test_a_models_retirement_is_told_to_all_that_listen(acme: Tenant) -> None:
    Model.objects.create(public_id="tiny")
    tenant_with("globex", owner=person("gus"))
    endpoint(acme, events=["model.retiring"])
    at = datetime(2027, 1, 1, tzinfo=UTC)
    assert [announce_retirement(model="tiny", retires_at=at, actor="test") for _ in range(2)] == [1, 0]
    assert only_delivery(acme).event.data == {"model": "tiny", "retires_at": "2027-01-01T00:00:00+00:00"}
    with pytest.raises(InvalidInput):
        announce_retirement(model="none", retires_at=at, actor="test")


def test_old_deliveries_are_forgotten_and_their_occasions_are_not(acme: Tenant) -> None:
    endpoint(acme)
    told(acme)
    WebhookDelivery.unscoped.update(created_at=timezone.now() - timedelta(days=31))
    forget_old_deliveries()
    assert not WebhookDelivery.objects.for_tenant(acme).exists()
    assert told(acme) is None


@pytest.mark.parametrize(
    "host",
    [
        *("2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.1", "8.8.8.010", "example.0x1", "1.2.3.4.5"),
        *("localhost", "LOCALHOST", "localhost.", "a.localhost", "a..example", ".example", "example.com.", "."),
        *("example.com:22", "example.com:81", "example.com:1023", "8.8.8.8:25", "[::ffff:127.0.0.1]"),
    ],
)
def test_hosts_in_odd_forms_and_odd_ports_are_refused_when_they_are_given(acme: Tenant, host: str) -> None:
    with pytest.raises(InvalidInput):
        add_endpoint(tenant=acme, url=f"https://{host}/", events=["key.expiring"], actor="test")
    assert not WebhookEndpoint.unscoped.exists()


@pytest.mark.parametrize(
    "host", ["example.com", "example.com:80", "example.com:443", "example.com:1024", "8.8.8.8", "0x7f.example"]
)
def test_usual_hosts_and_ports_are_taken(acme: Tenant, host: str) -> None:
    assert add_endpoint(tenant=acme, url=f"https://{host}/", events=["key.expiring"], actor="test").endpoint
