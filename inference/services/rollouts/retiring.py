"""Versions that retire: announced with a day, on which those who stayed on them go with the stable version."""

from datetime import datetime

import structlog
from django.db import transaction
from django.utils import timezone

from headway.errors import InvalidInput
from inference.models import ModelVersion, Pool
from inference.rollout_models import VersionPin
from inference.services.holding import hold_pool
from inference.services.registry import pool_of, publish_model
from inference.services.rollouts.pins import drop_pins, hold_pinned
from inference.services.rollouts.split import open_rollout
from inference.services.version_labels import version_named
from tenants.services.audit import record_audit

log = structlog.get_logger(__name__)


def set_retirement(*, public_id: str, label: str, retires_at: datetime | None, actor: str) -> ModelVersion:
    """None takes it back. Raises UnknownModel, UnknownVersion, InvalidInput."""
    with transaction.atomic():
        pool = hold_pool(pool_of(public_id).pk)
        version = version_named(pool.model, label)
        _check(pool, version, retires_at)
        before, version.retires_at = version.retires_at, retires_at
        version.save(update_fields=["retires_at"])
        told = {"retires_at": retires_at.isoformat() if retires_at else None}
        was = {"retires_at": before.isoformat() if before else None}
        record_audit(actor=actor, action="version.set_retirement", target=str(version), before=was, after=told)
    return version


def tenants_pinned_to(version: ModelVersion) -> list[str]:
    """Ids of the tenants that stay on it."""
    return [str(each) for each in VersionPin.objects.filter(version=version).values_list("tenant_id", flat=True)]


def retire_due(*, now: datetime) -> int:
    """Those whose day has come; one that has become stable again meanwhile stays. Returns how many."""
    retired = 0
    for version in ModelVersion.objects.filter(retired_at=None, retires_at__lte=now).select_related("model").order_by("id"):
        with transaction.atomic():
            tenants = hold_pinned(version)
            pool = hold_pool(pool_of(version.model.public_id).pk)
            rollout = open_rollout(pool)
            if version.pk == pool.version_id or (rollout and version.pk in {rollout.from_version_id, rollout.to_version_id}):
                log.warning("version_not_retired", version=str(version), reason="it is stable, or a rollout needs it")
                continue
            ModelVersion.objects.filter(pk=version.pk).update(retired_at=now)
            drop_pins(tenants, pool, version, actor="system")
            publish_model(pool)
            record_audit(actor="system", action="version.retire", target=str(version), after={"pins_dropped": len(tenants)})
            retired += 1
    return retired


def _check(pool: Pool, version: ModelVersion, retires_at: datetime | None) -> None:
    """Raises InvalidInput."""
    if version.retired_at is not None:
        raise InvalidInput(f"{version} is retired, and stays so", param="version")
    if retires_at is None:
        return
    if retires_at <= timezone.now():
        raise InvalidInput("the day lies ahead", param="on")
    rollout = open_rollout(pool)
    if version.pk == pool.version_id:
        raise InvalidInput(f"{version} is stable: release another version first", param="version")
    if rollout is not None and version.pk in {rollout.from_version_id, rollout.to_version_id}:
        raise InvalidInput(f"{version} is part of an open rollout", param="version")
