"""What mirrored requests say of a candidate: the one module that reads their scores."""

from dataclasses import dataclass
from datetime import datetime

from inference.policy.judging import joined, judge, judge_similarity
from inference.policy.rollout import Plan
from inference.policy.rollout_gates import Verdict, Window
from inference.rollout_models import Rollout
from inference.services.rollouts.evidence import CLOCKS_AHEAD, heard_until
from inference.shadow_models import ShadowScore

MAX_SAMPLES = 2000
"""The newest."""


@dataclass(frozen=True)
class Shadow:
    verdict: Verdict
    num_samples: int


def judge_shadow(rollout: Rollout, plan: Plan, *, now: datetime) -> Shadow:
    """Both answers to the same requests, since the step began, and up to when their nodes were last heard of."""
    assert plan.shadow is not None and rollout.measured_since is not None, "only while requests are mirrored"
    rows = ShadowScore.objects.filter(rollout=str(rollout.pk))
    rows, heard = rows.filter(at__gte=rollout.measured_since), heard_until(rollout, now=now)
    if heard is not None:
        rows = rows.exclude(at__gt=heard, at__lte=now + CLOCKS_AHEAD)
    newest = rows.order_by("-at", "-id")[:MAX_SAMPLES]
    scores = list(newest)
    stable = _window(scores, "stable", failed=0)
    candidate = _window(scores, "candidate", failed=sum(1 for score in scores if score.error))
    alike = [score.similarity for score in scores if score.similarity is not None]
    verdict = joined(judge(plan.gates, stable=stable, candidate=candidate), judge_similarity(plan.gates, alike))
    return Shadow(verdict, len(scores))


def _window(scores: list[ShadowScore], which: str, *, failed: int) -> Window:
    answered = [score for score in scores if which == "stable" or not score.error]
    reasons = [getattr(score, f"finish_reason_{which}") for score in answered]
    return Window(
        answered=len(answered),
        failed=failed,
        too_long=reasons.count("length"),
        ttft_ms=_told(answered, f"ttft_ms_{which}"),
        inter_token_ms=_told(answered, f"inter_token_ms_{which}"),
    )


def _told(scores: list[ShadowScore], name: str) -> tuple[float, ...]:
    return tuple(sorted(float(value) for score in scores if (value := getattr(score, name)) is not None))
