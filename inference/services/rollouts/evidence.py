"""What the two versions of a rollout did since its step began: the one module that reads it."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from billing.services.version_reads import VersionUse, use_of_versions
from inference.policy.bounds import share
from inference.policy.rollout_gates import Window
from inference.rollout_models import Rollout, VersionPin
from inference.services.version_labels import version_label
from tenants.selectors import operator_ids

LOOKS_BACK = timedelta(minutes=30)
"""At most: a step that lasts for hours is judged by what is new."""


@dataclass(frozen=True)
class Traffic:
    stable: Window
    candidate: Window
    stable_requests: int
    candidate_requests: int

    def seen_share(self, confidence: float) -> dict[str, float | int]:
        """Of the requests the candidate really got; with how sure that is."""
        requests = self.stable_requests + self.candidate_requests
        found = share(self.candidate_requests, requests, confidence)
        return {"share": found.value, "low": found.low, "high": found.high, "requests": requests}


def traffic(rollout: Rollout, *, now: datetime) -> Traffic:
    """Both versions in the same window; tenants that are pinned to a version are left out, and our own account."""
    assert rollout.measured_since is not None, "a step is measured from its beginning"
    stable, candidate = version_label(rollout.from_version), version_label(rollout.to_version)
    pinned = VersionPin.objects.filter(model_id=rollout.model_id, is_in_force=True).values_list("tenant_id", flat=True)
    since = max(rollout.measured_since, now - LOOKS_BACK)
    without = [*pinned, *operator_ids()]
    use = use_of_versions(model=rollout.model.public_id, versions=(stable, candidate), since=since, without=without)
    return Traffic(
        stable=_window(use[stable]),
        candidate=_window(use[candidate]),
        stable_requests=use[stable].requests,
        candidate_requests=use[candidate].requests,
    )


def _window(use: VersionUse) -> Window:
    return Window(
        answered=use.answered,
        failed=use.failed,
        too_long=use.too_long,
        ttft_ms=use.ttft_ms,
        inter_token_ms=use.inter_token_ms,
    )
