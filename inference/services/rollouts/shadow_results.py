"""What mirrored requests say of a candidate: the one module that reads their scores."""

from dataclasses import dataclass

from headway.errors import InvalidInput
from inference.policy.rollout import Plan
from inference.policy.rollout_gates import Outcome, Verdict
from inference.rollout_models import Rollout


@dataclass(frozen=True)
class Shadow:
    verdict: Verdict
    num_samples: int
    micros_left: int


def check_shadow(plan: Plan) -> None:
    """Raises InvalidInput where nothing can be mirrored."""
    if plan.shadow is not None:
        raise InvalidInput("requests are not mirrored in this release", param="shadow")


def judge_shadow(rollout: Rollout, plan: Plan) -> Shadow:
    return Shadow(Verdict(Outcome.INSUFFICIENT), 0, rollout.shadow_micros_left)
