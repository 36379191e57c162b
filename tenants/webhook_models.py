"""Tenants' webhooks: where to, what happened, and each event's way to each endpoint."""

import uuid
from typing import Any, ClassVar

from django.db import models

from tenants.owned import TenantOwnedManager


class EventType(models.TextChoices):
    KEY_EXPIRING = "key.expiring"
    BUDGET_REACHED = "budget.reached"
    BALANCE_LOW = "balance.low"
    MODEL_RETIRING = "model.retiring"
    TEST = "test"  # sent on demand, to the endpoint it tests


class WebhookEndpoint(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.CASCADE, related_name="+")
    url = models.CharField(max_length=500)
    secret = models.CharField(max_length=64, editable=False, help_text="signs what is sent: it must be kept to be used")
    events = models.JSONField(default=list, help_text="of EventType")
    created_at = models.DateTimeField(auto_now_add=True)
    disabled_at = models.DateTimeField(null=True, blank=True)

    unscoped: ClassVar[models.Manager[Any]] = models.Manager()
    objects = TenantOwnedManager()

    def __str__(self) -> str:
        return self.url


class WebhookEvent(models.Model):
    """Something that happened, once: `occasion` names it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.CASCADE, related_name="+")
    type = models.CharField(max_length=32, choices=EventType.choices)
    occasion = models.CharField(max_length=255)
    data = models.JSONField()
    created_at = models.DateTimeField(auto_now_add=True)

    unscoped: ClassVar[models.Manager[Any]] = models.Manager()
    objects = TenantOwnedManager()

    class Meta:
        constraints = (models.UniqueConstraint(fields=("tenant", "occasion"), name="one_event_per_tenant_and_occasion"),)

    def __str__(self) -> str:
        return f"{self.type} {self.id}"


class WebhookDelivery(models.Model):
    class State(models.TextChoices):
        PENDING = "pending"
        DELIVERED = "delivered"
        FAILED = "failed"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.CASCADE, related_name="+")
    event = models.ForeignKey(WebhookEvent, on_delete=models.CASCADE, related_name="+")
    endpoint = models.ForeignKey(WebhookEndpoint, on_delete=models.CASCADE, related_name="+")
    state = models.CharField(max_length=16, choices=State.choices, default=State.PENDING)
    attempts = models.PositiveIntegerField(default=0)
    last_status = models.PositiveSmallIntegerField(null=True, help_text="HTTP status of the last answer; null: none came")
    last_error = models.CharField(max_length=300, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    last_attempt_at = models.DateTimeField(null=True)
    delivered_at = models.DateTimeField(null=True)

    unscoped: ClassVar[models.Manager[Any]] = models.Manager()
    objects = TenantOwnedManager()

    class Meta:
        verbose_name_plural = "webhook deliveries"
        indexes = (models.Index(fields=("tenant", "-created_at"), name="deliveries_newest_first"),)

    def __str__(self) -> str:
        return f"{self.event_id} to {self.endpoint_id}: {self.state}"
