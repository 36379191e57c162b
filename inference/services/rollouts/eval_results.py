"""What eval sets say of a candidate: the one module that reads their results."""

from headway.errors import InvalidInput
from inference.policy.rollout import Plan
from inference.policy.rollout_gates import Outcome, Verdict
from inference.rollout_models import Rollout


def check_eval_sets(plan: Plan) -> None:
    """Raises InvalidInput for a set that there is not."""
    if plan.eval_sets:
        raise InvalidInput(f"there is no eval set {plan.eval_sets[0]!r}", param="evals")


def judge_eval_sets(rollout: Rollout, plan: Plan) -> Verdict:
    return Verdict(Outcome.PASS)
