"""Runs through a gateway: what is kept, what happens to a run whose worker dies, whose gateway is away, that is cancelled."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from billing.services.prices import list_unit_price, set_price
from headway.errors import Conflict, InvalidInput
from inference.errors import UnknownEval, UnknownModel, UnknownVersion
from inference.eval_models import EvalRun, EvalSample, EvalState
from inference.models import ModelVersion, Pool
from inference.services.evals import working
from inference.services.evals.asking import Answer
from inference.services.evals.runs import MAX_AT_ONCE, ask_for_run, cancel_run, run_with, set_baseline, start_next
from tenants.models import ApiKey
from tenants.services.operations import operations_tenant
from tests.inference.evals.conftest import again, small_set, work, work_once
from tests.inference.evals.fake_gateway import Asked, FakeGateway, Reply, answer, refusal
from workers.models import OutboxEntry

pytestmark = pytest.mark.django_db


def asked_for(version: str = "v1", number: int = 6, **more: Any) -> EvalRun:
    return ask_for_run(eval_set=small_set(number), model="m", version=version, actor="operator:o", **more)


def says(asked: Asked) -> Reply:
    """Wrong for every third case."""
    version = asked.headers.get("x-headway-version", "")
    return answer("ok" if int(asked.prompt.split()[1]) % 3 else "no", version=version)


def test_a_run_asks_every_case_once_and_keeps_what_it_came_to(pool: Pool, gateway: FakeGateway) -> None:
    set_price(model="m", input_micros=1_000_000, output_micros=2_000_000, actor="test")
    set_price(model="m", tier="batch", input_micros=500_000, output_micros=1_000_000, actor="test")
    gateway.script = says
    run = asked_for("v2")
    assert run.state == EvalState.RUNNING
    work()
    again(run)
    assert (run.state, run.cases_done, run.passed, run.errors) == (EvalState.DONE, 6, 4, 0)
    assert run.score == pytest.approx(4 / 6)
    assert [run.score_low, run.score_high] == pytest.approx([0.3000, 0.9032], abs=5e-5)
    assert (run.prompt_tokens, run.completion_tokens) == (60, 18)
    assert run.cost_picos == 60 * 500_000 + 18 * 1_000_000
    assert sorted(gateway.prompts()) == [f"say {number}" for number in range(1, 7)]
    sample = EvalSample.objects.get(run=run, case__case_id="c3")
    assert (sample.has_passed, sample.score, sample.text) == (False, 0.0, "no")
    assert sample.checks == [{"kind": "exact", "has_passed": False, "reason": "it is another text"}]
    assert {asked.headers["x-headway-version"] for asked in gateway.asked} == {"v2"}


def test_its_key_is_our_own_accounts_for_one_model_and_is_revoked(pool: Pool, gateway: FakeGateway) -> None:
    gateway.script = says
    run = asked_for()
    work()
    account = operations_tenant(actor="test")
    (key,) = ApiKey.objects.for_tenant(account)
    assert (key.allowed_models, key.tier_ceiling, key.scopes) == (["m"], "batch", ["inference"])
    assert key.revoked_at is not None
    assert key.expires_at is not None
    assert again(run).key_id == ""
    assert {asked.headers["authorization"].split("_")[2] for asked in gateway.asked} == {key.id}


@contextmanager
def dying_after(answers: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A worker that is killed when it has kept so many: nothing it would do at its end is done."""
    keep, kept = working.keep, list[int]()

    class Killed(BaseException):
        pass

    def dies(*arguments: Any) -> None:
        if len(kept) == answers:
            raise Killed
        keep(*arguments)
        kept.append(1)

    with monkeypatch.context() as patch:
        patch.setattr(working, "keep", dies)
        patch.setattr(working, "revoke_key", lambda *_args, **_more: None)
        with pytest.raises(Killed):
            work()
    yield


def test_a_worker_that_is_killed_loses_nothing_that_was_answered(
    pool: Pool, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.script = says
    run = asked_for(number=12, concurrency=2)
    with dying_after(5, monkeypatch):
        again(run)
        assert (run.state, run.cases_done) == (EvalState.RUNNING, 5)
        left_over = run.key_id
        assert ApiKey.unscoped.get(pk=left_over).revoked_at is None
    work()
    again(run)
    assert (run.state, run.cases_done, run.passed) == (EvalState.DONE, 12, 8)
    assert EvalSample.objects.filter(run=run).count() == 12
    assert (run.prompt_tokens, run.completion_tokens) == (120, 36), "each case counts once"
    assert len(gateway.asked) <= 12 + 2, "those that were under way are asked again, and no others"
    assert ApiKey.unscoped.get(pk=left_over).revoked_at is not None, "the next part revokes the key of the dead one"


def test_a_part_that_is_over_goes_on_in_another_entry(
    pool: Pool, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.script = says
    run = asked_for(concurrency=1)
    monkeypatch.setattr(working, "PART_S", 0.0)
    work_once()
    assert again(run).cases_done == 0
    assert OutboxEntry.objects.filter(kind="eval", done_at=None).count() == 1
    monkeypatch.setattr(working, "PART_S", 45.0)
    work()
    assert again(run).state == EvalState.DONE


def test_an_answer_that_another_worker_has_kept_counts_once(pool: Pool, gateway: FakeGateway) -> None:
    gateway.script = says
    run = asked_for()
    work()
    again(run)
    case = EvalSample.objects.filter(run=run).first()
    assert case is not None
    EvalRun.objects.filter(pk=run.pk).update(state=EvalState.RUNNING)
    working.keep(run, case.case, Answer(text="ok", prompt_tokens=99), list_unit_price("m", tier="batch"))
    assert again(run).cases_done == 6
    assert run.prompt_tokens == 60


def test_a_gateway_that_is_away_is_waited_for(pool: Pool, gateway: FakeGateway, settings: Any) -> None:
    gateway.script = says
    run = asked_for()
    settings.EVAL_API_URL = "http://127.0.0.1:9"
    work_once()
    again(run)
    assert (run.state, run.cases_done) == (EvalState.RUNNING, 0)
    assert "the gateway does not answer" in run.reason
    assert ApiKey.unscoped.filter(revoked_at=None).count() == 0
    settings.EVAL_API_URL = gateway.url
    work()
    again(run)
    assert (run.state, run.cases_done, run.errors, run.reason) == (EvalState.DONE, 6, 0, "")


def test_a_gateway_that_is_away_again_and_again_gives_up_no_run_that_comes_further(pool: Pool, gateway: FakeGateway) -> None:
    """Each entry of the outbox has so many attempts."""
    run = asked_for(number=20, concurrency=1)
    answers = list[str]()

    def away_after_each(asked: Asked) -> Reply:
        answers.append(asked.prompt)
        return says(asked) if len(answers) % 2 else refusal(403, message="away")

    gateway.script = away_after_each
    work(at_most=60)
    again(run)
    assert (run.state, run.cases_done, run.errors) == (EvalState.DONE, 20, 0)
    assert not OutboxEntry.objects.exclude(given_up_at=None).exists()


def test_one_that_stays_away_fails_the_run_with_its_reason(pool: Pool, settings: Any) -> None:
    run = asked_for()
    settings.EVAL_API_URL = "http://127.0.0.1:9"
    work()
    again(run)
    assert run.state == EvalState.FAILED
    assert "came no further" in run.reason
    assert "does not answer" in run.reason
    assert run.score is None
    assert ApiKey.unscoped.filter(revoked_at=None).count() == 0


def test_a_case_whose_engine_fails_has_not_passed_and_the_others_go_on(pool: Pool, gateway: FakeGateway) -> None:
    gateway.script = lambda asked: refusal(400, message="too long") if asked.prompt == "say 1" else says(asked)
    run = asked_for()
    work()
    again(run)
    assert (run.state, run.cases_done, run.passed, run.errors) == (EvalState.DONE, 6, 3, 1)
    assert EvalSample.objects.get(run=run, case__case_id="c1").error == "400: too long"


def test_a_run_that_is_answered_by_another_version_fails(pool: Pool, gateway: FakeGateway) -> None:
    gateway.script = lambda _asked: answer("ok", version="v1")
    run = asked_for("v2")
    work()
    again(run)
    assert (run.state, run.cases_done) == (EvalState.FAILED, 0)
    assert "answered by v1, and not by v2" in run.reason
    assert ApiKey.unscoped.filter(revoked_at=None).count() == 0


def test_a_run_that_is_cancelled_keeps_what_was_answered_and_asks_no_more(
    pool: Pool, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.script = says
    run = asked_for(number=20, concurrency=1)
    keep, kept = working.keep, list[int]()

    def cancelled_after_three(*arguments: Any) -> None:
        keep(*arguments)
        kept.append(1)
        if len(kept) == 3:
            cancel_run(run=run, actor="operator:o")

    monkeypatch.setattr(working, "keep", cancelled_after_three)
    work()
    again(run)
    assert (run.state, run.reason, run.cases_done) == (EvalState.CANCELLED, "by operator:o", 3)
    assert EvalSample.objects.filter(run=run).count() == 3
    assert len(gateway.asked) <= 5
    assert ApiKey.unscoped.filter(revoked_at=None).count() == 0
    with pytest.raises(Conflict, match="over already"):
        cancel_run(run=run, actor="operator:o")


def test_so_many_run_at_once_and_the_others_take_their_turn(pool: Pool, gateway: FakeGateway) -> None:
    gateway.script = says
    runs = [asked_for() for _ in range(MAX_AT_ONCE + 2)]
    states = list(EvalRun.objects.order_by("id").values_list("state", flat=True))
    assert states == ["running"] * MAX_AT_ONCE + ["queued"] * 2
    assert start_next() == [], "there is no room"
    cancel_run(run=runs[-1], actor="test")
    work()
    assert [again(run).state for run in runs] == ["done"] * (MAX_AT_ONCE + 1) + ["cancelled"]


def test_a_queued_run_that_nobody_began_is_begun_by_the_sweep(pool: Pool, gateway: FakeGateway) -> None:
    run = asked_for()
    EvalRun.objects.update(state=EvalState.QUEUED)
    assert start_next() == [run]


def test_what_does_not_exist_is_not_run(pool: Pool) -> None:
    with pytest.raises(UnknownModel):
        ask_for_run(eval_set=small_set(), model="x", actor="test")
    for label in ("v3", "v0", "two", "v99999999999"):
        with pytest.raises(UnknownVersion):
            asked_for(label)
    with pytest.raises(InvalidInput):
        asked_for(concurrency=0)
    with pytest.raises(UnknownEval):
        run_with(2**70)
    assert not EvalRun.objects.exists()


def test_there_is_one_baseline_of_a_set_and_a_model(
    pool: Pool, gateway: FakeGateway, versions: tuple[ModelVersion, ModelVersion]
) -> None:
    gateway.script = says
    first, second = asked_for("v1"), asked_for("v2")
    with pytest.raises(Conflict, match="a baseline is done"):
        set_baseline(run=first, actor="test")
    work()
    set_baseline(run=again(first), actor="test")
    set_baseline(run=again(second), actor="test")
    assert list(EvalRun.objects.filter(is_baseline=True)) == [second]
