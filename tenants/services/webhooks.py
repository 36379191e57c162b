"""Tenants' webhook endpoints, and what they are told. The sending is webhook_delivery's."""

import secrets
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone

from headway.errors import Conflict, InvalidInput
from tenants.errors import UnknownWebhook
from tenants.models import EventType, Tenant, WebhookDelivery, WebhookEndpoint, WebhookEvent
from tenants.services.audit import record_audit
from tenants.services.holding import hold_tenant
from tenants.services.webhook_addresses import check_url
from workers.services import outbox

KIND = "webhook"
"""Of outbox entries: {"delivery": id}."""
MAX_ENDPOINTS = 20
KEPT = timedelta(days=30)
SUBSCRIBED = (EventType.KEY_EXPIRING, EventType.BUDGET_REACHED, EventType.BALANCE_LOW, EventType.MODEL_RETIRING)


@dataclass(frozen=True)
class NewEndpoint:
    """The one time its secret is shown."""

    endpoint: WebhookEndpoint
    secret: str = field(repr=False)


def add_endpoint(*, tenant: Tenant, url: str, events: list[str], actor: str) -> NewEndpoint:
    """Raises InvalidInput for a URL that is none or names an address inside (its name is looked up when something is sent)."""
    url, events = check_url(url), _checked_events(events)
    secret = f"whsec_{secrets.token_urlsafe(32)}"
    with transaction.atomic():
        hold_tenant(tenant)
        if WebhookEndpoint.objects.for_tenant(tenant).count() >= MAX_ENDPOINTS:
            raise Conflict(f"{tenant.name} has {MAX_ENDPOINTS} webhook endpoints: remove some first")
        endpoint = WebhookEndpoint.unscoped.create(tenant=tenant, url=url, events=events, secret=secret)
        after = {"url": url, "events": events}
        record_audit(actor=actor, action="webhook.add", target=str(endpoint.id), tenant=tenant, after=after)
    return NewEndpoint(endpoint=endpoint, secret=secret)


def change_endpoint(
    *,
    tenant: Tenant,
    endpoint_id: str,
    actor: str,
    url: str | None = None,
    events: list[str] | None = None,
    is_enabled: bool | None = None,
) -> WebhookEndpoint:
    """What is given of it. Raises UnknownWebhook, InvalidInput."""
    with transaction.atomic():
        hold_tenant(tenant)
        endpoint = endpoint_of(tenant, endpoint_id)
        before = _plain(endpoint)
        if url is not None:
            endpoint.url = check_url(url)
        if events is not None:
            endpoint.events = _checked_events(events)
        if is_enabled is not None:
            endpoint.disabled_at = None if is_enabled else endpoint.disabled_at or timezone.now()
        endpoint.save(update_fields=["url", "events", "disabled_at"])
        after = _plain(endpoint)
        if after != before:
            target = str(endpoint.id)
            record_audit(actor=actor, action="webhook.change", target=target, tenant=tenant, before=before, after=after)
    return endpoint


def renew_secret(*, tenant: Tenant, endpoint_id: str, actor: str) -> NewEndpoint:
    """The old one signs nothing more. Raises UnknownWebhook."""
    with transaction.atomic():
        hold_tenant(tenant)
        endpoint = endpoint_of(tenant, endpoint_id)
        endpoint.secret = f"whsec_{secrets.token_urlsafe(32)}"
        endpoint.save(update_fields=["secret"])
        record_audit(actor=actor, action="webhook.renew_secret", target=str(endpoint.id), tenant=tenant)
    return NewEndpoint(endpoint=endpoint, secret=endpoint.secret)


def remove_endpoint(*, tenant: Tenant, endpoint_id: str, actor: str) -> None:
    """With its deliveries. Raises UnknownWebhook."""
    with transaction.atomic():
        hold_tenant(tenant)
        endpoint = endpoint_of(tenant, endpoint_id)
        record_audit(actor=actor, action="webhook.remove", target=str(endpoint.id), tenant=tenant, before={"url": endpoint.url})
        endpoint.delete()


def tell_webhooks(*, tenant: Tenant, type: EventType, occasion: str, data: dict[str, Any]) -> WebhookEvent | None:  # noqa: A002
    """An event to every endpoint that wants its kind; None when this occasion was told before."""
    if WebhookEvent.objects.for_tenant(tenant).filter(occasion=occasion).exists():
        return None
    try:
        with transaction.atomic():
            event: WebhookEvent = WebhookEvent.unscoped.create(tenant=tenant, type=type, occasion=occasion, data=data)
            for endpoint in WebhookEndpoint.objects.for_tenant(tenant).filter(disabled_at=None):
                if type in endpoint.events:
                    _send(event, endpoint)
    except IntegrityError:
        return None
    return event


def send_test(*, tenant: Tenant, endpoint_id: str, actor: str) -> WebhookDelivery:
    """A `test` event to this endpoint alone. Raises UnknownWebhook."""
    with transaction.atomic():
        hold_tenant(tenant)
        endpoint = endpoint_of(tenant, endpoint_id)
        event = WebhookEvent.unscoped.create(
            tenant=tenant, type=EventType.TEST, occasion=f"test:{secrets.token_hex(8)}", data={"endpoint": str(endpoint.id)}
        )
        record_audit(actor=actor, action="webhook.test", target=str(endpoint.id), tenant=tenant)
        return _send(event, endpoint)


def resend(*, tenant: Tenant, delivery_id: str, actor: str) -> WebhookDelivery:
    """The same event under the same ids, from the first attempt on. Raises UnknownWebhook, Conflict while it is under way."""
    with transaction.atomic():
        delivery = delivery_of(tenant, delivery_id)
        ended = WebhookDelivery.unscoped.filter(pk=delivery.pk).exclude(state=WebhookDelivery.State.PENDING)
        if not ended.update(state=WebhookDelivery.State.PENDING, attempts=0, delivered_at=None):
            raise Conflict("this delivery is under way already")
        record_audit(actor=actor, action="webhook.resend", target=str(delivery.id), tenant=tenant)
        outbox.put(kind=KIND, ids={"delivery": str(delivery.id)})
        delivery.refresh_from_db()
    return delivery


def endpoint_of(tenant: Tenant, endpoint_id: str) -> WebhookEndpoint:
    """Raises UnknownWebhook."""
    found: WebhookEndpoint | None = _one(WebhookEndpoint.objects.for_tenant(tenant), endpoint_id)
    if found is None:
        raise UnknownWebhook(f"{tenant.name} has no such webhook endpoint")
    return found


def delivery_of(tenant: Tenant, delivery_id: str) -> WebhookDelivery:
    """Raises UnknownWebhook."""
    rows = WebhookDelivery.objects.for_tenant(tenant).select_related("event", "endpoint")
    found: WebhookDelivery | None = _one(rows, delivery_id)
    if found is None:
        raise UnknownWebhook(f"{tenant.name} has no such webhook delivery")
    return found


def forget_old_deliveries() -> int:
    """What happened KEPT ago, with its deliveries."""
    return (
        WebhookEvent.unscoped.filter(type=EventType.TEST, created_at__lt=timezone.now() - KEPT).delete()[0]
        + (WebhookDelivery.unscoped.filter(created_at__lt=timezone.now() - KEPT).delete()[0])
    )


def _send(event: WebhookEvent, endpoint: WebhookEndpoint) -> WebhookDelivery:
    delivery: WebhookDelivery = WebhookDelivery.unscoped.create(tenant=event.tenant, event=event, endpoint=endpoint)
    outbox.put(kind=KIND, ids={"delivery": str(delivery.id)})
    return delivery


def _one(rows: Any, row_id: str) -> Any:
    try:
        return rows.filter(pk=row_id).first()
    except ValidationError:  # no UUID
        return None


def _checked_events(events: list[str]) -> list[str]:
    if not events or not set(events) <= {event.value for event in SUBSCRIBED}:
        raise InvalidInput(f"events are one or more of {', '.join(event.value for event in SUBSCRIBED)}", param="events")
    return sorted(set(events))


def _plain(endpoint: WebhookEndpoint) -> dict[str, Any]:
    return {"url": endpoint.url, "events": endpoint.events, "is_enabled": endpoint.disabled_at is None}
