"""Which version a tenant gets of each model, and on which it may stay."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from inference.models import ModelVersion, Pool, Replica, ReplicaState
from inference.rollout_models import ENDED, Rollout, VersionPin
from inference.services.version_labels import version_label


@dataclass(frozen=True)
class PinView:
    """Of one model, for one tenant."""

    model: str
    stable: str
    pinned: str
    """A blank: it goes with the stable version."""
    is_in_force: bool
    retires_at: datetime | None
    """Of the version it stays on."""
    choices: list[str]
    """Newest first."""


def pinnable_versions(pool: Pool) -> list[ModelVersion]:
    """What a tenant may choose: the stable version, and what serves or stands by beside it for others' sake. Newest first."""
    return _pinnable([pool]).get(pool.pk, [])


def pins_of(tenant_id: UUID) -> list[PinView]:
    """Of every model that has versions of ours, by its id."""
    pools = list(Pool.objects.filter(version__isnull=False).select_related("model", "version").order_by("model__public_id"))
    pins = {pin.model_id: pin for pin in VersionPin.objects.filter(tenant_id=tenant_id).select_related("version")}
    choices = _pinnable(pools)
    return [_view(pool, pins.get(pool.model_id), choices[pool.pk]) for pool in pools]


def _view(pool: Pool, pin: VersionPin | None, choices: list[ModelVersion]) -> PinView:
    labels = [version_label(version) for version in choices]
    pinned = version_label(pin.version) if pin is not None else ""
    return PinView(
        model=pool.model.public_id,
        stable=version_label(pool.version),
        pinned=pinned,
        is_in_force=pin is not None and pin.is_in_force,
        retires_at=pin.version.retires_at if pin is not None else None,
        choices=labels if not pinned or pinned in labels else [*labels, pinned],
    )


def _pinnable(pools: Sequence[Pool]) -> dict[int, list[ModelVersion]]:
    """In three queries, whatever the number of pools."""
    models = [pool.model_id for pool in pools]
    tried = set(Rollout.objects.filter(model_id__in=models).exclude(state__in=ENDED).values_list("to_version_id", flat=True))
    serving = Replica.objects.filter(pool__in=pools, is_wanted=True, state__in=(ReplicaState.READY, ReplicaState.WARM))
    ids = set(serving.exclude(version=None).values_list("version_id", flat=True)) - tried
    ids |= {pool.version_id for pool in pools if pool.version_id}
    rows = ModelVersion.objects.filter(pk__in=ids, retired_at=None).order_by("-number")
    found = {pool.pk: [version for version in rows if version.model_id == pool.model_id] for pool in pools}
    for pool in pools:
        for version in found[pool.pk]:
            version.model = pool.model
    return found
