"""Which versions of a model serve, and who gets which: what the feed's model rows carry of it (`versions`).

Only the stable version, the candidate of an open rollout, and versions that somebody is pinned to ever serve.
"""

from typing import Any

from inference.models import ModelVersion, Pool
from inference.rollout_models import ENDED, ON_THE_WAY, Rollout, RolloutState, VersionPin
from inference.services.version_labels import version_label

WITH_CANDIDATE = frozenset({*ON_THE_WAY, RolloutState.PAUSED})


def open_rollout(pool: Pool) -> Rollout | None:
    rows = Rollout.objects.filter(model_id=pool.model_id).exclude(state__in=ENDED)
    return rows.select_related("from_version", "to_version", "model").first()


def pinned_versions(pool: Pool) -> list[ModelVersion]:
    """Those that somebody stays on and that are not retired, oldest first."""
    rows = VersionPin.objects.filter(model_id=pool.model_id, version__retired_at=None)
    return list(ModelVersion.objects.filter(pk__in=rows.values("version_id")).order_by("number"))


def versions_payload(pool: Pool) -> dict[str, Any]:
    """Nothing where no version of ours is stable: then everything that is ready serves."""
    if pool.version is None:
        return {}
    shown = {"stable": version_label(pool.version), "candidate": None, "salt": ""}
    shares = {"candidate_share_ppm": 0, "shadow_share_ppm": 0, "shadow_max_usd_micros_left": 0}
    rollout = open_rollout(pool)
    if rollout is not None and rollout.state in WITH_CANDIDATE:
        shown |= {"candidate": version_label(rollout.to_version), "salt": str(rollout.pk)}
        shares = {
            "candidate_share_ppm": rollout.share_ppm,
            "shadow_share_ppm": rollout.shadow_share_ppm,
            "shadow_max_usd_micros_left": rollout.shadow_micros_left,
        }
    return {"versions": {**shown, **shares, "pinned": [version_label(version) for version in pinned_versions(pool)]}}
