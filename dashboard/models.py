"""What pages keep for themselves."""

import uuid
from typing import Any, ClassVar

from django.conf import settings
from django.db import models

from tenants.owned import TenantOwnedManager


class FormClaim(models.Model):
    """A form that makes something was posted and did: its nonce is claimed in the transaction that made it."""

    nonce = models.CharField(max_length=32, unique=True)
    made_at = models.DateTimeField(auto_now_add=True, db_index=True)

    def __str__(self) -> str:
        return self.nonce


class SavedView(models.Model):
    """A query of the usage page that a member keeps under a name. What is shown is the address's to say: this is a link."""

    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.CASCADE, related_name="+")
    member = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    name = models.CharField(max_length=60)
    query = models.CharField(max_length=1000)
    saved_at = models.DateTimeField(auto_now=True)

    unscoped: ClassVar[models.Manager[Any]] = models.Manager()
    objects = TenantOwnedManager()

    class Meta:
        constraints = (models.UniqueConstraint(fields=("tenant", "member", "name"), name="one_view_per_member_and_name"),)

    def __str__(self) -> str:
        return self.name


class Preset(models.Model):
    """How the playground is set: what is asked of which model, never what was answered."""

    class Visibility(models.TextChoices):
        MINE = "mine"
        TENANT = "tenant"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.CASCADE, related_name="+")
    member = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    name = models.CharField(max_length=60)
    visibility = models.CharField(max_length=8, choices=Visibility.choices, default=Visibility.MINE)
    model = models.CharField(max_length=200, help_text="public id")
    system_prompt = models.TextField(blank=True)
    parameters = models.JSONField(default=dict, help_text="by the names of the playground's form")
    saved_at = models.DateTimeField(auto_now=True)

    unscoped: ClassVar[models.Manager[Any]] = models.Manager()
    objects = TenantOwnedManager()

    class Meta:
        constraints = (models.UniqueConstraint(fields=("tenant", "member", "name"), name="one_preset_per_member_and_name"),)

    def __str__(self) -> str:
        return self.name
