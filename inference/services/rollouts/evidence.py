"""What the two versions of a rollout did since its step began: the one module that reads it."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Min, Sum

from billing.services.version_reads import VersionUse, use_of_versions
from inference.models import NodeHeartbeat, Replica, ReplicaState
from inference.policy.bounds import share
from inference.policy.rollout_gates import Window
from inference.rollout_models import Rollout, VersionPin
from inference.services.heartbeats import lost_after
from inference.services.version_labels import version_label
from tenants.selectors import operator_ids

_MAY_SERVE = (ReplicaState.READY, ReplicaState.DRAINING)
LOOKS_BACK = timedelta(minutes=30)
"""At most: a step that lasts for hours is judged by what is new."""
PENDING_LIMITS = 1.5
"""So many times the limit of silence it may take until a node is found lost; one that is silent for longer is not."""
CLOCKS_AHEAD = timedelta(seconds=60)
"""What a gateway says ended later than that beyond now is by a clock that is ahead, and counts."""


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
    heard = heard_until(rollout, now=now)
    unsure = None if heard is None else (heard, now + CLOCKS_AHEAD)
    use = use_of_versions(
        model=rollout.model.public_id, versions=(stable, candidate), since=since, without=without, unsure=unsure
    )
    return Traffic(
        stable=_window(use[stable]),
        candidate=_window(use[candidate]),
        stable_requests=use[stable].requests,
        candidate_requests=use[candidate].requests,
    )


def heard_until(rollout: Rollout, *, now: datetime) -> datetime | None:
    """When all nodes that serve the two versions had last been heard of; None: nothing is to be waited for.

    What failed since may have failed with its node: it is judged once that has beaten again. Should it be found lost instead,
    the step is measured anew (advancing.py).
    """
    serving = Replica.objects.filter(pool__model_id=rollout.model_id, state__in=_MAY_SERVE).exclude(node="")
    nodes = serving.filter(version__in=(rollout.from_version_id, rollout.to_version_id)).values("node")
    is_pending = now - PENDING_LIMITS * lost_after()
    found = NodeHeartbeat.objects.filter(name__in=nodes, seen_at__gt=is_pending).aggregate(heard=Min("seen_at"))
    heard: datetime | None = found["heard"]
    return heard


def num_taken(rollout: Rollout) -> int:
    """Engines of both versions that went with their node, or were stopped by hand."""
    rows = Replica.objects.filter(pool__model_id=rollout.model_id)
    rows = rows.filter(version__in=(rollout.from_version_id, rollout.to_version_id))
    return int(rows.aggregate(taken=Sum("engines_taken"))["taken"] or 0)


def _window(use: VersionUse) -> Window:
    return Window(
        answered=use.answered,
        failed=use.failed,
        too_long=use.too_long,
        ttft_ms=use.ttft_ms,
        inter_token_ms=use.inter_token_ms,
    )
