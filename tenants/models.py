"""Tenants, their members and API keys, and the audit log."""

import secrets
import uuid
from typing import Any, ClassVar

from django.contrib.auth.models import AbstractUser
from django.db import models

from tenants.errors import TenantScopeMissing


class User(AbstractUser):
    """A person who can log in. A member of tenants through Membership."""


def new_cache_salt() -> str:
    return secrets.token_hex(16)


class Tenant(models.Model):
    """A customer. Pages may say "organisation"."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.SlugField(max_length=63, unique=True)
    cache_salt = models.CharField(max_length=32, default=new_cache_salt, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    suspended_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.name


class TenantOwnedQuerySet(models.QuerySet[Any]):
    def for_tenant(self, tenant: Tenant) -> "TenantOwnedQuerySet":
        return self.filter(tenant=tenant)


class TenantOwnedManager(models.Manager[Any]):
    """Fails closed: every query names a tenant. The way out is the model's `unscoped` manager."""

    def get_queryset(self) -> models.QuerySet[Any]:
        raise TenantScopeMissing("name the tenant: objects.for_tenant(tenant), or unscoped where all are meant")

    def for_tenant(self, tenant: Tenant) -> TenantOwnedQuerySet:
        return TenantOwnedQuerySet(self.model, using=self._db).for_tenant(tenant)


class Membership(models.Model):
    class Role(models.TextChoices):
        OWNER = "owner"
        ADMIN = "admin"
        DEVELOPER = "developer"
        BILLING = "billing"
        VIEWER = "viewer"

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    role = models.CharField(max_length=16, choices=Role.choices)
    created_at = models.DateTimeField(auto_now_add=True)

    unscoped: ClassVar[models.Manager[Any]] = models.Manager()
    objects = TenantOwnedManager()

    class Meta:
        constraints = (models.UniqueConstraint(fields=("tenant", "user"), name="one_membership_per_tenant_and_user"),)

    def __str__(self) -> str:
        return f"{self.user} in {self.tenant} as {self.role}"


class ApiKey(models.Model):
    """`hw_live_<id>_<secret>_<check>`; only the secret's SHA-256 is kept."""

    id = models.CharField(primary_key=True, max_length=16, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    member = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    name = models.CharField(max_length=100)
    secret_sha256 = models.CharField(max_length=64, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    unscoped: ClassVar[models.Manager[Any]] = models.Manager()
    objects = TenantOwnedManager()

    def __str__(self) -> str:
        return f"{self.id} ({self.name})"


class AuditEntry(models.Model):
    """Who did what to what. Append-only."""

    at = models.DateTimeField(auto_now_add=True)
    actor = models.CharField(max_length=200)
    action = models.CharField(max_length=64)
    target = models.CharField(max_length=200)
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.SET_NULL, related_name="+")
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)

    class Meta:
        verbose_name_plural = "audit entries"

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M:%S} {self.actor} {self.action} {self.target}"
