"""A release waits for its eval gates: a worse candidate goes back by itself, what is not known is no pass."""

from typing import Any

import pytest

from inference.eval_models import EvalRun
from inference.rollout_models import Rollout, RolloutState
from inference.services.evals.gates import MAX_TRIES, set_gate
from inference.services.rollouts.moves import rollout_numbered
from tests.inference.evals.conftest import small_set, work
from tests.inference.evals.fake_gateway import Asked, FakeGateway, Reply, answer, refusal
from tests.inference.services.rollout_cast import Cast

pytestmark = pytest.mark.django_db
_S = RolloutState


def says(asked: Asked) -> Reply:
    return answer("ok", version=asked.headers["x-headway-version"])


def worse(asked: Asked) -> Reply:
    version = asked.headers["x-headway-version"]
    return answer("ok" if version == "v1" or int(asked.prompt.split()[1]) % 2 else "no", version=version)


def at_evals(cast: Cast, **bound: Any) -> Rollout:
    set_gate(model="m", eval_set=small_set(50), actor="test", **bound)
    return cast.until(cast.started(), _S.EVALS)


def test_it_goes_on_once_both_versions_have_been_run_and_the_gates_pass(gateway: FakeGateway) -> None:
    gateway.script, cast = says, Cast()
    rollout = at_evals(cast, min_score=0.8, max_drop=0.1)
    for _ in range(3):
        cast.look()
    assert rollout_numbered(rollout.pk).state == _S.EVALS, "runs that are not done are no pass"
    assert EvalRun.objects.count() == 2
    assert set(EvalRun.objects.values_list("created_by", flat=True)) == {f"rollout:{rollout.pk}"}
    work()
    cast.until(rollout, _S.CANARY)
    assert EvalRun.objects.count() == 2


def test_a_worse_candidate_goes_back_with_the_evidence(gateway: FakeGateway) -> None:
    gateway.script, cast = worse, Cast()
    rollout = at_evals(cast, max_drop=0.1)
    cast.look()
    work()
    cast.until(rollout, _S.ROLLED_BACK)
    found = rollout_numbered(rollout.pk)
    assert "difference -50.0 points on 50 cases" in found.reason
    event = found.events.filter(to_state=_S.ROLLING_BACK).get()
    (finding,) = [each for each in event.evidence["findings"] if each["gate"].startswith("evals")]
    assert (finding["stable"], finding["candidate"], finding["outcome"]) == (1.0, 0.5, "breach")


def test_too_few_cases_hold_it_where_it_is(gateway: FakeGateway) -> None:
    gateway.script, cast = says, Cast()
    rollout = at_evals(cast, min_score=0.99)
    cast.look()
    work()
    for _ in range(3):
        cast.look()
    found = rollout_numbered(rollout.pk)
    assert found.state == _S.EVALS
    assert "score 100.0 %" in found.reason


def test_a_run_that_fails_is_tried_again_a_few_times_and_no_more(gateway: FakeGateway, monkeypatch: Any) -> None:
    monkeypatch.setattr("inference.services.evals.asking.SETTLE_S", 0.0)
    gateway.script, cast = (lambda _asked: refusal(400, "version_not_allowed", "none that you may ask for")), Cast()
    rollout = at_evals(cast, min_score=0.5)
    for _ in range(MAX_TRIES + 3):
        cast.look()
        work()
    assert EvalRun.objects.count() == MAX_TRIES
    found = rollout_numbered(rollout.pk)
    assert found.state == _S.EVALS
    assert "of the candidate failed: 400: none that you may ask for" in found.reason
