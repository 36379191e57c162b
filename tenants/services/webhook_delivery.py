"""Send one webhook delivery: signed, to the address that was checked, within a time that nobody can stretch.

    headway-signature: t=<unix seconds>,v1=<hex HMAC-SHA256 of "<t>." + body, by the endpoint's secret>

The receiver refuses a signature that is old (five minutes), and knows a repeated delivery by `headway-delivery-id`.
"""

import contextlib
import hashlib
import hmac
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from django.db.models import F
from django.utils import timezone

from headway.errors import HeadwayError
from tenants.models import WebhookDelivery
from tenants.services.webhook_addresses import resolve_public
from workers.errors import TryLater

MAX_ATTEMPTS = 12
"""About two hours and a half; then the delivery has failed, and may be sent again by hand."""
CONNECT_S = 5.0
WHOLE_S = 15.0
"""From connecting to the answer's status."""


def deliver(ids: dict[str, Any]) -> None:
    """The outbox's effect. Raises TryLater until it is delivered or given up."""
    rows = WebhookDelivery.unscoped.select_related("event", "endpoint", "tenant")
    delivery: WebhookDelivery | None = rows.filter(id=ids["delivery"], state=WebhookDelivery.State.PENDING).first()
    if delivery is None:  # removed with its endpoint, or delivered by one who died before saying so
        return
    if delivery.endpoint.disabled_at is not None:
        _note(delivery, WebhookDelivery.State.FAILED, None, "the endpoint is disabled")
        return
    status: int | None = None
    try:
        status = post(delivery)
        error = "" if 200 <= status < 300 else f"the endpoint answered {status}"
    except HeadwayError as refused:
        error = refused.message
    except (OSError, http.client.HTTPException, ValueError) as failed:
        error = f"the endpoint cannot be reached: {type(failed).__name__}"
    if not error:
        _note(delivery, WebhookDelivery.State.DELIVERED, status, "")
        return
    is_last = delivery.attempts + 1 >= MAX_ATTEMPTS
    _note(delivery, WebhookDelivery.State.FAILED if is_last else WebhookDelivery.State.PENDING, status, error)
    if not is_last:
        raise TryLater(error)


def body_of(delivery: WebhookDelivery) -> bytes:
    event = delivery.event
    return json.dumps(
        {
            "id": str(event.id),
            "type": event.type,
            "created_at": event.created_at.isoformat(),
            "tenant": delivery.tenant.name,
            "data": event.data,
        },
        separators=(",", ":"),
    ).encode()


def signature(secret: str, body: bytes, *, at_s: int) -> str:
    digest = hmac.new(secret.encode(), b"%d." % at_s + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"


def post(delivery: WebhookDelivery) -> int:
    """The status that came. Raises TryLater, AddressInside, OSError, HTTPException."""
    parts, body = urlsplit(delivery.endpoint.url), body_of(delivery)
    address, port = resolve_public(parts)
    host = parts.hostname or ""
    headers = {
        "host": parts.netloc,
        "content-type": "application/json",
        "user-agent": "Headway-Webhooks/1",
        "connection": "close",
        "headway-event-id": str(delivery.event_id),
        "headway-delivery-id": str(delivery.id),
        "headway-signature": signature(delivery.endpoint.secret, body, at_s=int(timezone.now().timestamp())),
    }
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    plain = socket.create_connection((address, port), timeout=CONNECT_S)
    with _ended_after(plain, WHOLE_S):
        stream = plain
        if parts.scheme == "https":
            stream = ssl.create_default_context().wrap_socket(plain, server_hostname=host)
        with contextlib.closing(http.client.HTTPConnection(host)) as connection:
            connection.sock = stream
            connection.request("POST", target, body=body, headers=headers)
            return connection.getresponse().status


@contextlib.contextmanager
def _ended_after(sock: socket.socket, within_s: float) -> Iterator[None]:
    """Whatever the other side drips, it is over then: each read has a time limit, and so have all together."""
    # A descriptor of its own: wrapping for TLS takes the first one away.
    guard, is_over = sock.dup(), threading.Event()

    def end() -> None:
        is_over.set()
        with contextlib.suppress(OSError):
            guard.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(within_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
        if is_over.is_set():  # what was read is half an answer
            raise TimeoutError
    finally:
        timer.cancel()
        guard.close()
        sock.close()


def _note(delivery: WebhookDelivery, state: str, status: int | None, error: str) -> None:
    now = timezone.now()
    WebhookDelivery.unscoped.filter(id=delivery.id).update(
        state=state,
        attempts=F("attempts") + 1,
        last_status=status,
        last_error=error[:300],
        last_attempt_at=now,
        delivered_at=now if state == WebhookDelivery.State.DELIVERED else None,
    )
