"""Who of a tenant's members is told of what by mail."""

from typing import Any, ClassVar

from django.db import models

from tenants.owned import TenantOwnedManager
from tenants.webhook_models import EventType


class AlertMail(models.Model):
    """As a tenant has set it for one kind of event; without a row the default holds."""

    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.CASCADE, related_name="+")
    type = models.CharField(max_length=32, choices=EventType.choices)
    roles = models.JSONField(default=list, help_text="of Membership.Role; empty: nobody")

    unscoped: ClassVar[models.Manager[Any]] = models.Manager()
    objects = TenantOwnedManager()

    class Meta:
        constraints = (models.UniqueConstraint(fields=("tenant", "type"), name="one_setting_per_tenant_and_kind_of_mail"),)

    def __str__(self) -> str:
        return f"{self.type} of {self.tenant_id}"
