"""Read runs: as lists, in figures, and two side by side."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Case as SqlCase
from django.db.models import F, IntegerField, Max, OuterRef, Q, QuerySet, Subquery, Value, When
from django.utils import timezone

from headway.errors import NotFound
from headway.money import picos_to_usd
from inference.eval_models import OPEN_EVALS, EvalCase, EvalGate, EvalRun, EvalSample, EvalSet, EvalState
from inference.evals.scores import Interval, Paired, mcnemar, paired_difference, wilson
from inference.models import Model, ModelVersion
from inference.services.evals.pairs import paired_counts, paired_counts_of
from inference.services.evals.sets import set_label
from inference.services.version_labels import version_label

MAX_TAGS_SHOWN = 50


@dataclass(frozen=True)
class Comparison:
    """Of two runs on the cases that both have answered."""

    new: EvalRun
    old: EvalRun
    paired: Paired
    difference: Interval
    """The new one's score less the old one's; 95 %."""
    p_value: float
    """McNemar's, exact."""

    @property
    def is_regression(self) -> bool:
        return self.difference.high < 0

    @property
    def is_improvement(self) -> bool:
        return self.difference.low > 0


@dataclass(frozen=True)
class TagScore:
    tag: str
    passed: int
    cases: int
    score: Interval


@dataclass(frozen=True)
class Figures:
    """Of a run as far as it is."""

    score: Interval
    """95 %, Wilson."""
    checks_passed: int
    checks: int
    tags: list[TagScore]


@dataclass(frozen=True)
class Side:
    """A case in two runs."""

    sample: EvalSample
    other: EvalSample

    @property
    def change(self) -> str:
        if self.sample.has_passed != self.other.has_passed:
            return "better" if self.sample.has_passed else "worse"
        return ""


def eval_sets() -> QuerySet[EvalSet]:
    return EvalSet.objects.order_by("-id")


def eval_set_with(set_id: int) -> EvalSet:
    """Raises NotFound."""
    found = EvalSet.objects.filter(pk=set_id).first() if 0 < set_id < 2**63 else None
    if found is None:
        raise NotFound(f"there is no eval set with the id {set_id}")
    return found


def cases_of(eval_set: EvalSet) -> QuerySet[EvalCase]:
    return EvalCase.objects.filter(eval_set=eval_set).order_by("position")


def eval_runs(*, model: str = "", eval_set: EvalSet | None = None) -> QuerySet[EvalRun]:
    """Newest first."""
    rows = EvalRun.objects.select_related("eval_set", "model", "version").order_by("-id")
    if model:
        rows = rows.filter(model__public_id=model)
    return rows if eval_set is None else rows.filter(eval_set=eval_set)


def eval_gates(model: str = "") -> QuerySet[EvalGate]:
    rows = EvalGate.objects.select_related("model", "eval_set").order_by("model__public_id", "eval_set__name")
    return rows.filter(model__public_id=model) if model else rows


def gate_with(gate_id: int) -> EvalGate:
    """Raises NotFound."""
    found = eval_gates().filter(pk=gate_id).first() if 0 < gate_id < 2**63 else None
    if found is None:
        raise NotFound(f"there is no eval gate with the id {gate_id}")
    return found


def version_labels(model: str) -> list[str]:
    """Newest first."""
    numbers = ModelVersion.objects.filter(model__public_id=model).order_by("-number")
    return [version_label(version) for version in numbers]


def models_and_versions() -> list[tuple[str, list[str]]]:
    """Every model's, by its public id."""
    found: dict[str, list[str]] = {
        public_id: [] for public_id in Model.objects.order_by("public_id").values_list("public_id", flat=True)
    }
    for version in ModelVersion.objects.select_related("model").order_by("-number"):
        found[version.model.public_id].append(version_label(version))
    return list(found.items())


def comparable_runs(run: EvalRun) -> QuerySet[EvalRun]:
    """Others of the same set that have answers, newest first."""
    return eval_runs().filter(eval_set=run.eval_set_id, cases_done__gt=0).exclude(pk=run.pk)


def newest_done(version_ids: Iterable[int]) -> dict[tuple[int, int], EvalRun]:
    """By set and version: the newest run that is done of each."""
    rows = EvalRun.objects.filter(state=EvalState.DONE, version__in=version_ids)
    newest = rows.values("eval_set", "version").annotate(newest=Max("id")).values("newest")
    runs = eval_runs().filter(pk__in=newest)
    return {(run.eval_set_id, run.version_id): run for run in runs if run.version_id is not None}


def compared(new: EvalRun, old: EvalRun) -> Comparison:
    """Raises InvalidInput for runs of different sets."""
    return _comparison(new, old, paired_counts(new, old))


def held_against_baselines(runs: Iterable[EvalRun]) -> dict[int, Comparison]:
    """By a run's id: those that are done, against their set's baseline on their model, else against the newest run of the
    stable version. A run that has neither, or is it, is left out."""
    done = [run for run in runs if run.state == EvalState.DONE]
    olds = {run.pk: old for run, old in _baselines(done) if old is not None and old.pk != run.pk}
    paired = paired_counts_of({new: old.pk for new, old in olds.items()})
    return {run.pk: _comparison(run, olds[run.pk], paired[run.pk]) for run in done if run.pk in olds}


def _baselines(done: list[EvalRun]) -> Iterator[tuple[EvalRun, EvalRun | None]]:
    about = {"eval_set__in": {run.eval_set_id for run in done}, "model__in": {run.model_id for run in done}}
    rows = EvalRun.objects.filter(state=EvalState.DONE, **about)
    stable = rows.filter(model__pool__version=F("version")).values("eval_set", "model").annotate(newest=Max("id"))
    found = eval_runs().filter(Q(pk__in=rows.filter(is_baseline=True).values("pk")) | Q(pk__in=stable.values("newest")))
    # Those that are marked come last, and take the place of the others.
    by_set = {(run.eval_set_id, run.model_id): run for run in found.order_by("is_baseline")}
    for run in done:
        yield run, by_set.get((run.eval_set_id, run.model_id))


def _comparison(new: EvalRun, old: EvalRun, paired: Paired) -> Comparison:
    return Comparison(new, old, paired, paired_difference(paired), mcnemar(paired))


def figures_of(run: EvalRun) -> Figures:
    rows = EvalSample.objects.filter(run=run).values_list("has_passed", "checks", "case__content__tags")
    checks_passed, checks, tags = 0, 0, dict[str, list[bool]]()
    for has_passed, results, named in rows.iterator(chunk_size=1000):
        checks_passed += sum(1 for result in results if result["has_passed"])
        checks += len(results)
        for tag in named or []:
            tags.setdefault(tag, []).append(has_passed)
    scores = [TagScore(tag, sum(each), len(each), wilson(sum(each), len(each))) for tag, each in tags.items()]
    scores.sort(key=lambda score: (-score.cases, score.tag))
    return Figures(wilson(run.passed, run.cases_done), checks_passed, checks, scores[:MAX_TAGS_SHOWN])


def samples_of(run: EvalRun, *, outcome: str = "") -> QuerySet[EvalSample]:
    """Those that failed first. `outcome`: passed, failed, error; blank: all."""
    rows = EvalSample.objects.filter(run=run).select_related("case").order_by("has_passed", "case__position")
    match outcome:
        case "passed":
            return rows.filter(has_passed=True)
        case "failed":
            return rows.filter(has_passed=False)
        case "error":
            return rows.exclude(error="")
    return rows


def changed_first(new: EvalRun, old: EvalRun) -> QuerySet[EvalSample]:
    """The new run's samples of cases that both answered: worse ones, then better ones, failed twice, passed twice."""
    theirs = EvalSample.objects.filter(run=old, case=OuterRef("case")).values("has_passed")[:1]
    order = SqlCase(
        When(has_passed=False, old_passed=True, then=Value(0)),
        When(has_passed=True, old_passed=False, then=Value(1)),
        When(has_passed=False, then=Value(2)),
        default=Value(3),
        output_field=IntegerField(),
    )
    rows = EvalSample.objects.filter(run=new).select_related("case").annotate(old_passed=Subquery(theirs))
    return rows.exclude(old_passed=None).annotate(change=order).order_by("change", "case__position")


def side_by_side(samples: list[EvalSample], old: EvalRun) -> list[Side]:
    """With the other run's of the same cases."""
    others = {each.case_id: each for each in EvalSample.objects.filter(run=old, case__in=[each.case_id for each in samples])}
    return [Side(sample, others[sample.case_id]) for sample in samples]


def wall_s(run: EvalRun, now: datetime | None = None) -> float:
    """From its first request on."""
    ended_at = run.ended_at or now or timezone.now()
    return max(0.0, (ended_at - run.started_at).total_seconds()) if run.started_at else 0.0


def run_values(run: EvalRun) -> dict[str, Any]:
    """Plain, for programs."""
    return {
        "id": run.id,
        "eval_set": set_label(run.eval_set),
        "model": run.model.public_id,
        "version": version_label(run.version),
        "state": run.state,
        "reason": run.reason,
        "is_open": run.state in OPEN_EVALS,
        "is_baseline": run.is_baseline,
        "concurrency": run.concurrency,
        "cases": run.cases_total,
        "cases_done": run.cases_done,
        "passed": run.passed,
        "errors": run.errors,
        "score": run.score,
        "score_low": run.score_low,
        "score_high": run.score_high,
        "prompt_tokens": run.prompt_tokens,
        "completion_tokens": run.completion_tokens,
        "cost_usd": picos_to_usd(run.cost_picos),
        "wall_s": round(wall_s(run), 1),
        "created_at": run.created_at.isoformat(),
        "created_by": run.created_by,
        "started_at": run.started_at.isoformat() if run.started_at else None,
        "ended_at": run.ended_at.isoformat() if run.ended_at else None,
    }


def comparison_values(found: Comparison) -> dict[str, Any]:
    return {
        "run": found.new.id,
        "against": found.old.id,
        "cases": found.paired.cases,
        "both_passed": found.paired.both,
        "only_run_passed": found.paired.only_new,
        "only_against_passed": found.paired.only_old,
        "neither_passed": found.paired.neither,
        "difference": found.difference.value,
        "difference_low": found.difference.low,
        "difference_high": found.difference.high,
        "p_value": found.p_value,
        "is_regression": found.is_regression,
        "is_improvement": found.is_improvement,
    }
