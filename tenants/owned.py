"""Rows that belong to a tenant are read by naming it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models

from tenants.errors import TenantScopeMissing

if TYPE_CHECKING:
    from tenants.models import Tenant


class TenantOwnedQuerySet(models.QuerySet[Any]):
    def for_tenant(self, tenant: Tenant) -> TenantOwnedQuerySet:
        return self.filter(tenant=tenant)


class TenantOwnedManager(models.Manager[Any]):
    """Fails closed: every query names a tenant. The way out is the model's `unscoped` manager."""

    def get_queryset(self) -> models.QuerySet[Any]:
        raise TenantScopeMissing("name the tenant: objects.for_tenant(tenant), or unscoped where all are meant")

    def for_tenant(self, tenant: Tenant) -> TenantOwnedQuerySet:
        return TenantOwnedQuerySet(self.model, using=self._db).for_tenant(tenant)
