"""What eval sets that are gates say of a candidate: the one module that reads their results."""

from inference.policy.judging import verdict_of
from inference.policy.rollout_gates import Finding, Outcome, Verdict
from inference.rollout_models import Rollout
from inference.services.evals.gates import GateResult, ensure_runs, gate_results, has_gates
from inference.services.evals.sets import set_label


def has_eval_gates(rollout: Rollout) -> bool:
    """Does the model have a set that its versions must do well on?"""
    return has_gates(rollout.model_id)


def judge_eval_gates(rollout: Rollout) -> Verdict:
    """Asks for the runs that are missing."""
    stable, candidate = rollout.from_version, rollout.to_version
    asked_by = f"rollout:{rollout.pk}"
    ensure_runs(model=rollout.model, stable_version=stable, candidate_version=candidate, actor=asked_by)
    return verdict_of([_finding(result) for result in gate_results(rollout.model, stable, candidate)])


def _finding(result: GateResult) -> Finding:
    run, stable = result.run, result.stable_run
    return Finding(
        gate=f"evals {set_label(result.gate.eval_set)}",
        outcome=Outcome(result.verdict.value),
        reason="; ".join(result.reasons),
        limit=result.gate.min_score,
        unit="share",
        stable=stable.score if stable else None,
        candidate=run.score if run else None,
        low=run.score_low if run else None,
        high=run.score_high if run else None,
        stable_samples=stable.cases_done if stable else 0,
        candidate_samples=run.cases_done if run else 0,
    )
