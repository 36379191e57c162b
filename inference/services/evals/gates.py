"""Sets that are gates: what a version must do well on before it is released, and what its runs say about that."""

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from headway.errors import InvalidInput
from inference.errors import UnknownEval
from inference.eval_models import OPEN_EVALS, EvalGate, EvalRun, EvalSet, EvalState
from inference.evals.scores import Bound, Verdict, judge_drop, judge_score, worst
from inference.models import Model, ModelVersion, Pool
from inference.services.evals.pairs import paired_counts
from inference.services.evals.runs import new_run, start_next
from inference.services.evals.sets import set_label
from inference.services.holding import hold_pool
from inference.services.registry import pool_of
from tenants.services.audit import record_audit

MAX_TRIES = 3
LEAST_CONFIDENCE, MOST_CONFIDENCE = 0.5, 0.9999


@dataclass(frozen=True)
class GateResult:
    gate: EvalGate
    verdict: Verdict
    reasons: list[str]
    run: EvalRun | None
    """The candidate's; None: there is none yet."""
    stable_run: EvalRun | None

    @property
    def is_running(self) -> bool:
        """More will be known."""
        return any(run is not None and run.state in OPEN_EVALS for run in (self.run, self.stable_run))


def set_gate(
    *,
    model: str,
    eval_set: EvalSet,
    actor: str,
    min_score: float | None = None,
    max_drop: float | None = None,
    confidence: float = 0.95,
) -> EvalGate:
    """Make it, or change the one there is. Shares, 0 to 1. Raises UnknownModel, InvalidInput."""
    if min_score is None and max_drop is None:
        raise InvalidInput("a gate has a least score, or a greatest drop, or both", param="min_score")
    for name, share in (("min_score", min_score), ("max_drop", max_drop)):
        if share is not None and not 0 <= share <= 1:
            raise InvalidInput(f"{name} is a share, from 0 to 1", param=name)
    if not LEAST_CONFIDENCE <= confidence <= MOST_CONFIDENCE:
        raise InvalidInput(f"a confidence is from {LEAST_CONFIDENCE} to {MOST_CONFIDENCE}", param="confidence")
    asked = {"min_score": min_score, "max_drop": max_drop, "confidence": confidence}
    with transaction.atomic():
        gate, _ = EvalGate.objects.update_or_create(
            model=pool_of(model).model, eval_set=eval_set, defaults=asked, create_defaults={**asked, "created_by": actor[:200]}
        )
        record_audit(actor=actor, action="eval.set_gate", target=model, after={"eval_set": set_label(eval_set), **asked})
    return gate


def remove_gate(*, model: str, eval_set: EvalSet, actor: str) -> None:
    """Raises UnknownModel, UnknownEval."""
    with transaction.atomic():
        if not EvalGate.objects.filter(model=pool_of(model).model, eval_set=eval_set).delete()[0]:
            raise UnknownEval(f"{set_label(eval_set)} is no gate of {model}", param="eval_set")
        record_audit(actor=actor, action="eval.remove_gate", target=model, after={"eval_set": set_label(eval_set)})


def ensure_runs(
    *,
    model: Model,
    stable_version: ModelVersion | None,
    candidate_version: ModelVersion,
    actor: str,
    since: datetime | None = None,
) -> list[EvalRun]:
    """A run of each gate's set on the candidate, and on the stable version where the gate compares the two.

    One that is done, or under way, is not run again (`since`: unless it was asked for before). Called again it does nothing
    more; those of this actor that failed or were cancelled are run anew, MAX_TRIES times in all. Returns those that count.
    """
    runs = []
    with transaction.atomic():
        pool = hold_pool(Pool.objects.get(model=model).pk)  # two at once ask for one run
        for gate in EvalGate.objects.filter(model=model).select_related("eval_set").order_by("id"):
            compared = [stable_version] if gate.max_drop is not None and stable_version is not None else []
            for version in [candidate_version, *compared]:
                found = _usable_run(gate, version, since)
                if found is None and _tries(gate, version, actor) < MAX_TRIES:
                    found = new_run(eval_set=gate.eval_set, pool=pool, version=version, actor=actor)
                if found is not None:
                    runs.append(found)
        start_next()
    return runs


def gate_results(
    model: Model,
    stable_version: ModelVersion | None,
    candidate_version: ModelVersion,
    *,
    since: datetime | None = None,
) -> list[GateResult]:
    """What is known now, a gate at a time. Without a gate: an empty list, which `worst` takes for a pass."""
    gates = EvalGate.objects.filter(model=model).select_related("eval_set", "model").order_by("id")
    return [_result(gate, stable_version, candidate_version, since) for gate in gates]


def verdict_of(results: list[GateResult]) -> Verdict:
    """Of all gates together."""
    return worst([result.verdict for result in results])


def _usable_run(gate: EvalGate, version: ModelVersion, since: datetime | None) -> EvalRun | None:
    """The newest that is done, else one that is under way."""
    rows = EvalRun.objects.filter(eval_set=gate.eval_set, model=gate.model, version=version)
    if since is not None:
        rows = rows.filter(created_at__gte=since)
    done = rows.filter(state=EvalState.DONE).order_by("-id").first()
    return done or rows.filter(state__in=OPEN_EVALS).order_by("id").first()


def _tries(gate: EvalGate, version: ModelVersion, actor: str) -> int:
    return EvalRun.objects.filter(eval_set=gate.eval_set, model=gate.model, version=version, created_by=actor[:200]).count()


def _result(gate: EvalGate, stable: ModelVersion | None, candidate: ModelVersion, since: datetime | None) -> GateResult:
    run = _usable_run(gate, candidate, since)
    stable_run = _usable_run(gate, stable, since) if stable is not None and gate.max_drop is not None else None
    reasons = [_missing("candidate", run, gate, candidate)]
    if gate.max_drop is not None:
        reasons.append(_missing("stable version", stable_run, gate, stable))
    missing = [f"{set_label(gate.eval_set)}: {reason}" for reason in reasons if reason]
    if missing or run is None:
        return GateResult(gate, Verdict.INSUFFICIENT, missing, run, stable_run)
    bound = Bound(gate.min_score, gate.max_drop, gate.confidence)
    judged = [judge_score(bound, passed=run.passed, cases=run.cases_done)]
    if stable_run is not None:
        judged.append(judge_drop(bound, paired_counts(run, stable_run)))
    reasons = [f"{set_label(gate.eval_set)}: {reason}" for each in judged for reason in each.reasons]
    return GateResult(gate, worst([each.verdict for each in judged]), reasons, run, stable_run)


def has_gates(model_id: int) -> bool:
    return EvalGate.objects.filter(model=model_id).exists()


def _missing(whose: str, run: EvalRun | None, gate: EvalGate, version: ModelVersion | None) -> str:
    """Why there is no result of it yet; empty: there is."""
    if run is None:
        rows = EvalRun.objects.filter(eval_set=gate.eval_set, model=gate.model, version=version)
        last = rows.order_by("-id").first() if version is not None else None
        return f"run {last.id} of the {whose} {last.state}: {last.reason}" if last is not None else f"the {whose} has no run"
    if run.state != EvalState.DONE:
        return f"run {run.id} of the {whose} is {run.state} ({run.cases_done} of {run.cases_total} cases)"
    return ""
