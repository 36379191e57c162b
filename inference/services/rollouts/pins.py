"""Tenants that stay on a version until it retires. A pin is in force once a replica of the version serves."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from headway.errors import InvalidInput
from inference.models import ModelVersion, Pool, Replica, ReplicaState
from inference.rollout_models import VersionPin
from inference.services.holding import hold_pool
from inference.services.registry import pool_of, publish_model
from inference.services.rollouts.fleet import settle_fleet
from inference.services.rollouts.pin_reads import pinnable_versions
from inference.services.version_labels import version_label, version_named
from tenants.services.audit import record_audit
from tenants.services.holding import hold_tenant
from tenants.services.tenants import tenant_named
from tenants.services.terms import publish_terms_of


def pin_version(*, tenant: Any, public_id: str, label: str, actor: str, is_self_service: bool = False) -> VersionPin:
    """Have all requests of a tenant for a model answered by one version.

    `is_self_service`: by the tenant itself, which may stay on a version that serves, and starts no other.
    Raises UnknownModel, UnknownVersion, InvalidInput.
    """
    with transaction.atomic():
        hold_tenant(tenant)
        pool = hold_pool(pool_of(public_id).pk)
        version, now = version_named(pool.model, label), timezone.now()
        if version.retired_at or (version.retires_at and version.retires_at <= now):
            raise InvalidInput(f"{version} is retired", param="version")
        if is_self_service and version.pk not in {choice.pk for choice in pinnable_versions(pool)}:
            raise InvalidInput(f"{version} is not served: choose a version that is", param="version")
        before = VersionPin.objects.filter(tenant_id=tenant.id, model=pool.model).select_related("version").first()
        values = {"version": version, "is_in_force": _serves(pool, version), "created_by": actor[:200]}
        pin, _ = VersionPin.objects.update_or_create(tenant_id=tenant.id, model=pool.model, defaults=values)
        _follow(pool, tenant, now)
        _audit(tenant, pool, actor, before.version if before else None, version)
    return pin


def unpin_version(*, tenant: Any, public_id: str, actor: str) -> bool:
    """The tenant goes with the stable version again. False: it was not pinned. Raises UnknownModel."""
    with transaction.atomic():
        hold_tenant(tenant)
        pool = hold_pool(pool_of(public_id).pk)
        pin = VersionPin.objects.filter(tenant_id=tenant.id, model=pool.model).select_related("version").first()
        if pin is None:
            return False
        pin.delete()
        _follow(pool, tenant, timezone.now())
        _audit(tenant, pool, actor, pin.version, None)
    return True


def put_pins_in_force(*, now: datetime) -> int:
    """Those whose version serves by now. Returns how many."""
    found = 0
    for pin in VersionPin.objects.filter(is_in_force=False).select_related("model__pool", "version").order_by("id"):
        if not _serves(pin.model.pool, pin.version):
            continue
        with transaction.atomic():
            tenant = tenant_named(str(pin.tenant_id))
            hold_tenant(tenant)
            if VersionPin.objects.filter(pk=pin.pk, version=pin.version).update(is_in_force=True):
                publish_terms_of(tenant)
                found += 1
    return found


def hold_pinned(version: ModelVersion) -> list[Any]:
    """The tenants that stay on it, held: before their pool, as whoever pins one does."""
    ids = VersionPin.objects.filter(version=version).order_by("tenant_id").values_list("tenant_id", flat=True)
    tenants = [tenant_named(str(tenant_id)) for tenant_id in ids]
    for tenant in tenants:
        hold_tenant(tenant)
    return tenants


def drop_pins(tenants: Sequence[Any], pool: Pool, version: ModelVersion, *, actor: str) -> None:
    """Of a version that retires: they go with the stable one. Call it with both held."""
    for tenant in tenants:
        VersionPin.objects.filter(tenant_id=tenant.id, version=version).delete()
        publish_terms_of(tenant)
        _audit(tenant, pool, actor, version, None)


def _follow(pool: Pool, tenant: Any, now: datetime) -> None:
    settle_fleet(pool, now=now)
    publish_model(pool)
    publish_terms_of(tenant)


def _serves(pool: Pool, version: ModelVersion) -> bool:
    if version.pk == pool.version_id:
        return True
    return Replica.objects.filter(pool=pool, version=version, state=ReplicaState.READY, is_wanted=True).exists()


def _audit(tenant: Any, pool: Pool, actor: str, before: ModelVersion | None, after: ModelVersion | None) -> None:
    record_audit(
        actor=actor,
        action="version.pin" if after else "version.unpin",
        target=pool.model.public_id,
        tenant=tenant,
        before={"version": version_label(before)},
        after={"version": version_label(after)},
    )
