"""Changes of one tenant wait for each other on its row (SQLite has one writer anyway).

So what a change has read still holds when it writes, and what it publishes is the newest: a key that is revoked while
somebody else changes it stays revoked at the gateways too. Hold the tenant first, before any other row and before
anything is published.
"""

from typing import Any

from django.db.models import QuerySet

from tenants.models import Tenant


def hold_tenant(tenant: Tenant) -> None:
    """Until the transaction ends; `tenant` is as it is now."""
    tenant.refresh_from_db(from_queryset=_held())


def hold_tenants(rows: QuerySet[Tenant]) -> list[Tenant]:
    """The same of several, always in one order."""
    return list(_held().filter(pk__in=rows.order_by().values("pk")).order_by("pk"))


def _held() -> QuerySet[Any]:
    return Tenant.objects.select_for_update(no_key=True)  # rows that name it may still be added
