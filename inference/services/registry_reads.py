"""Models and their versions as operators see them: what each is made of, where it stands, and how two of them differ."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Q

from inference.errors import UnknownModel
from inference.models import Model, ModelVersion, Pool, Replica, ReplicaState
from inference.rollout_models import Rollout, VersionPin
from inference.services.replicas import LIVE_STATES
from inference.services.rollouts.split import open_rollout
from inference.services.version_labels import version_label, version_named


@dataclass(frozen=True)
class ModelRow:
    id: int
    public_id: str
    stable: str
    versions: int
    ready: int
    rollout: Rollout | None
    created_at: datetime


@dataclass(frozen=True)
class VersionRow:
    version: Any
    label: str
    stage: str
    tone: str
    """good, warn, bad or a blank."""
    replicas: int
    """Not stopped."""
    ready: int
    pins: int
    """Tenants that stay on it."""

    @property
    def may_be_released(self) -> bool:
        return self.stage not in {"stable", "retired"} and not self.version.retires_at

    @property
    def may_retire(self) -> bool:
        return self.stage not in {"stable", "retired", "candidate"}


@dataclass(frozen=True)
class ModelPage:
    model: Model
    pool: Pool
    rows: list[VersionRow]
    rollout: Rollout | None


@dataclass(frozen=True)
class Difference:
    name: str
    before: str
    after: str

    @property
    def is_same(self) -> bool:
        return self.before == self.after


def model_rows() -> list[ModelRow]:
    """By public id."""
    ended = ("promoted", "rolled_back", "aborted")
    rollouts = {each.model_id: each for each in Rollout.objects.exclude(state__in=ended).select_related("to_version__model")}
    ready = Count("replicas", filter=Q(replicas__state=ReplicaState.READY), distinct=True)
    versions = Count("model__versions", distinct=True)
    pools = Pool.objects.select_related("model", "version").annotate(ready=ready, versions=versions)
    return [
        ModelRow(
            id=pool.model_id,
            public_id=pool.model.public_id,
            stable=version_label(pool.version),
            versions=pool.versions,
            ready=pool.ready,
            rollout=rollouts.get(pool.model_id),
            created_at=pool.model.created_at,
        )
        for pool in pools.order_by("model__public_id")
    ]


def model_page(model_id: int) -> ModelPage:
    """Newest version first. Raises UnknownModel."""
    pool = Pool.objects.select_related("model", "version").filter(model_id=model_id).first()
    if pool is None:
        raise UnknownModel("there is no such model")
    rollout = open_rollout(pool)
    live: dict[int | None, int] = {}
    ready: dict[int | None, int] = {}
    for version_id, state in Replica.objects.filter(pool=pool, state__in=LIVE_STATES).values_list("version_id", "state"):
        live[version_id] = live.get(version_id, 0) + 1
        ready[version_id] = ready.get(version_id, 0) + (state == ReplicaState.READY)
    pins = dict(VersionPin.objects.filter(model_id=model_id).values_list("version").annotate(number=Count("id")).order_by())
    rows = []
    for version in pool.model.versions.select_related("model").order_by("-number"):
        stage, tone = _stage(version, pool, rollout, live.get(version.pk, 0), pins.get(version.pk, 0))
        rows.append(
            VersionRow(
                version=version,
                label=version_label(version),
                stage=stage,
                tone=tone,
                replicas=live.get(version.pk, 0),
                ready=ready.get(version.pk, 0),
                pins=pins.get(version.pk, 0),
            )
        )
    return ModelPage(model=pool.model, pool=pool, rows=rows, rollout=rollout)


def compared(model: Model, before: str, after: str) -> list[Difference]:
    """Two versions by their labels, field by field. Raises UnknownVersion."""
    pair = [_told(version_named(model, label)) for label in (before, after)]
    return [Difference(name, pair[0][name], pair[1][name]) for name in pair[0]]


def _stage(version: ModelVersion, pool: Pool, rollout: Rollout | None, live: int, pins: int) -> tuple[str, str]:
    if version.retired_at is not None:
        return "retired", "bad"
    if version.pk == pool.version_id:
        return "stable", "good"
    if rollout is not None and version.pk == rollout.to_version_id:
        return "candidate", "warn"
    if pins:
        return "pinned", "good"
    if live:
        return "kept warm", "warn"
    return ("staged", "") if version.weights_digest else ("registered", "")


def _told(version: ModelVersion) -> dict[str, str]:
    args = _arguments(version.engine_args)
    return {
        "Weights": version.weights_uri,
        "Digest": version.weights_digest or "not staged yet",
        "Engine environment": version.engine_environment,
        "Number format": version.dtype,
        "Engine arguments": "\n".join(args) or "none",
        "Golden prompts": str(len(version.golden_prompts)),
        "Registered": f"{version.created_at:%Y-%m-%d %H:%M} by {version.created_by or 'a release before this one'}",
        "Retires": f"{version.retires_at:%Y-%m-%d}" if version.retires_at else "no",
    }


def _arguments(args: list[str]) -> list[str]:
    """One option a line, each with its value, by name."""
    lines: list[str] = []
    for arg in args:
        if arg.startswith("--") or not lines:
            lines.append(arg)
        else:
            lines[-1] += f" {arg}"
    return sorted(lines)
