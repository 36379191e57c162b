"""Gates: runs that they need are asked for once, and what they say."""

import pytest

from headway.errors import InvalidInput
from inference.errors import UnknownEval, UnknownModel
from inference.eval_models import EvalGate, EvalRun, EvalState
from inference.evals.scores import Verdict
from inference.models import ModelVersion, Pool
from inference.services.evals.gates import ensure_runs, gate_results, remove_gate, set_gate, verdict_of
from inference.services.evals.pairs import paired_counts
from inference.services.evals.runs import cancel_run
from tests.inference.evals.conftest import again, small_set, work
from tests.inference.evals.fake_gateway import Asked, FakeGateway, Reply, answer

pytestmark = pytest.mark.django_db
Versions = tuple[ModelVersion, ModelVersion]


def ensured(pool: Pool, versions: Versions) -> list[EvalRun]:
    return ensure_runs(model=pool.model, stable_version=versions[0], candidate_version=versions[1], actor="rollout:1")


def bad_candidate(asked: Asked) -> Reply:
    version = asked.headers["x-headway-version"]
    return answer("no" if version == "v2" and int(asked.prompt.split()[1]) % 2 else "ok", version=version)


def good_candidate(asked: Asked) -> Reply:
    return answer("ok", version=asked.headers["x-headway-version"])


def test_without_a_gate_there_is_nothing_to_fail(pool: Pool, versions: Versions) -> None:
    assert ensured(pool, versions) == []
    assert gate_results(pool.model, *versions) == []
    assert verdict_of([]) is Verdict.PASS


def test_each_version_is_run_once_however_often_it_is_asked_for(pool: Pool, versions: Versions, gateway: FakeGateway) -> None:
    gateway.script = good_candidate
    set_gate(model="m", eval_set=small_set(40), actor="test", min_score=0.8, max_drop=0.1)
    runs = ensured(pool, versions)
    assert [run.version for run in runs] == [versions[1], versions[0]]
    assert ensured(pool, versions) == runs
    (before,) = gate_results(pool.model, *versions)
    assert (before.verdict, before.is_running) == (Verdict.INSUFFICIENT, True)
    assert any("of the candidate is running" in reason for reason in before.reasons)
    work()
    assert ensured(pool, versions) == runs
    assert EvalRun.objects.count() == 2
    (result,) = gate_results(pool.model, *versions)
    assert (result.verdict, result.is_running) == (Verdict.PASS, False)
    assert verdict_of([result]) is Verdict.PASS


def test_a_worse_candidate_is_a_breach_with_the_evidence(pool: Pool, versions: Versions, gateway: FakeGateway) -> None:
    gateway.script = bad_candidate
    set_gate(model="m", eval_set=small_set(60), actor="test", max_drop=0.1)
    runs = ensured(pool, versions)
    work()
    (result,) = gate_results(pool.model, *versions)
    assert result.verdict is Verdict.BREACH
    assert "small@1: difference -50.0 points on 60 cases" in result.reasons[0]
    paired = paired_counts(again(runs[0]), again(runs[1]))
    assert (paired.both, paired.only_new, paired.only_old, paired.neither) == (30, 0, 30, 0)


def test_few_cases_are_not_a_pass(pool: Pool, versions: Versions, gateway: FakeGateway) -> None:
    gateway.script = good_candidate
    set_gate(model="m", eval_set=small_set(3), actor="test", min_score=0.8)
    assert len(ensured(pool, versions)) == 1, "without a greatest drop the stable version need not run"
    work()
    (result,) = gate_results(pool.model, *versions)
    assert (result.verdict, result.is_running) == (Verdict.INSUFFICIENT, False)
    assert "score 100.0 %" in result.reasons[0]


def test_a_run_that_was_cancelled_or_failed_is_run_anew(pool: Pool, versions: Versions) -> None:
    set_gate(model="m", eval_set=small_set(), actor="test", min_score=0.5)
    (run,) = ensured(pool, versions)
    cancel_run(run=run, actor="test")
    (result,) = gate_results(pool.model, *versions)
    assert (result.verdict, result.run) == (Verdict.INSUFFICIENT, None)
    (anew,) = ensured(pool, versions)
    assert anew != run
    EvalRun.objects.filter(pk=anew.pk).update(state=EvalState.FAILED)
    assert ensured(pool, versions) not in ([run], [anew])


def test_runs_from_before_a_moment_do_not_count(pool: Pool, versions: Versions, gateway: FakeGateway) -> None:
    gateway.script = good_candidate
    set_gate(model="m", eval_set=small_set(), actor="test", min_score=0.1)
    (run,) = ensured(pool, versions)
    work()
    since = again(run).ended_at
    assert since is not None
    assert gate_results(pool.model, *versions)[0].run == run
    assert gate_results(pool.model, *versions, since=since)[0].run is None
    model, stable, candidate = pool.model, *versions
    (anew,) = ensure_runs(model=model, stable_version=stable, candidate_version=candidate, actor="test", since=since)
    assert anew != run


def test_a_gate_is_changed_where_there_is_one_and_asks_something(pool: Pool) -> None:
    eval_set = small_set()
    first = set_gate(model="m", eval_set=eval_set, actor="test", min_score=0.5)
    second = set_gate(model="m", eval_set=eval_set, actor="test", max_drop=0.02, confidence=0.9)
    assert first.pk == second.pk
    gate = EvalGate.objects.get()
    assert (gate.min_score, gate.max_drop, gate.confidence) == (None, 0.02, 0.9)
    for wrong in (
        {},
        {"min_score": 1.5},
        {"max_drop": -0.1},
        {"min_score": 0.5, "confidence": 1.0},
        {"min_score": float("nan")},
    ):
        with pytest.raises(InvalidInput):
            set_gate(model="m", eval_set=eval_set, actor="test", **wrong)
    with pytest.raises(UnknownModel):
        set_gate(model="x", eval_set=eval_set, actor="test", min_score=0.5)
    remove_gate(model="m", eval_set=eval_set, actor="test")
    with pytest.raises(UnknownEval):
        remove_gate(model="m", eval_set=eval_set, actor="test")


def test_runs_of_different_sets_are_not_compared(pool: Pool, versions: Versions) -> None:
    runs = [
        EvalRun(eval_set=small_set(2, name="one")),
        EvalRun(eval_set=small_set(2, name="two")),
    ]
    with pytest.raises(InvalidInput, match="same cases"):
        paired_counts(*runs)
