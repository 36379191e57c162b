"""What inference adds to the API (`headway.urls_api` puts it together)."""

from typing import Any

from inference.api import evals, fleet, operator_pools, operator_weights, rollouts, versions

OF_TENANT = {"pins/": versions.Pins}
"""Below `tenants/<tenant>/`: every one is a TenantView (a test walks them all)."""

_EVAL_RUN = "eval-runs/<id:run_id>/"
_ROLLOUT = "rollouts/<id:rollout_id>/"

OF_OPERATORS: dict[str, Any] = {
    "pools/": operator_pools.Pools,
    "pools/<id:pool_id>/": operator_pools.OnePool,
    "scaling/": operator_pools.Decisions,
    "fleet/": fleet.Fleet,
    "fleet/cordons/": fleet.Cordons,
    "fleet/moves/": fleet.Moves,
    "drains/": fleet.Drains,
    "drains/undo/": fleet.Undrains,
    "versions/": versions.Versions,
    "versions/retirements/": versions.Retirements,
    "tenants/<slug:tenant>/pins/": versions.OperatorPins,
    "rollouts/": rollouts.Rollouts,
    _ROLLOUT: rollouts.OneRollout,
    _ROLLOUT + "events/": rollouts.RolloutEvents,
    _ROLLOUT + "start/": rollouts.StartRollout,
    _ROLLOUT + "pause/": rollouts.PauseRollout,
    _ROLLOUT + "resume/": rollouts.ResumeRollout,
    _ROLLOUT + "approve/": rollouts.ApproveRollout,
    _ROLLOUT + "promote/": rollouts.PromoteRollout,
    _ROLLOUT + "roll-back/": rollouts.RollBackRollout,
    _ROLLOUT + "abort/": rollouts.AbortRollout,
    "eval-sets/": evals.EvalSets,
    "eval-sets/<id:set_id>/": evals.OneEvalSet,
    "eval-sets/<id:set_id>/cases/": evals.EvalCases,
    "eval-runs/": evals.EvalRuns,
    _EVAL_RUN: evals.OneEvalRun,
    _EVAL_RUN + "samples/": evals.EvalSamples,
    _EVAL_RUN + "against/<id:against_id>/": evals.EvalComparison,
    _EVAL_RUN + "cancel/": evals.CancelEvalRun,
    _EVAL_RUN + "baseline/": evals.EvalBaseline,
    "eval-gates/": evals.EvalGates,
    "eval-gates/<id:gate_id>/": evals.OneEvalGate,
    "weights/": operator_weights.Weights,
    "capacity/": operator_weights.Capacity,
}
"""Below `operator/`: every one is an OperatorView (a test walks them all)."""
