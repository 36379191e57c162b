"""What eval sets that are gates say of a candidate: the one module that reads their results."""

from inference.policy.rollout_gates import Outcome, Verdict
from inference.rollout_models import Rollout


def has_eval_gates(rollout: Rollout) -> bool:
    """Does the model have a set that its versions must do well on?"""
    return False


def judge_eval_gates(rollout: Rollout) -> Verdict:
    """Asks for the runs that are missing."""
    return Verdict(Outcome.PASS)
