"""What the site tells Prometheus of the last reconciliation, of pools and releases, and whom."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from billing.models import Reconciliation, Verdict
from inference.models import Model, Pool, Replica, ReplicaState
from inference.rollout_models import Rollout, RolloutState
from inference.scaling_models import ReplicaStart, ScaleDecision, WakeUp
from inference.services.rollouts.operating import abort_rollout
from inference.services.wake_ups import WOKEN
from tests.dashboard.operators import client, operator
from tests.inference.services.rollout_cast import Cast
from tests.inference.services.scaled_pool import have, scaled_pool

__all__ = ["client", "operator"]  # fixtures
pytestmark = pytest.mark.django_db
TOKEN = "a-token-of-the-tests"
OF_FLEET = ("headway_pool_", "headway_scale_", "headway_wake_", "headway_waits_", "headway_replica_", "headway_rollout_")


@pytest.fixture
def _token(settings: Any) -> None:
    settings.METRICS_TOKEN = TOKEN


def scraped(token: str = TOKEN) -> Any:
    return Client().get("/metrics", headers={"authorization": f"Bearer {token}"})


def samples() -> dict[str, float]:
    answer = scraped()
    assert answer.status_code == 200 and answer["content-type"].startswith("text/plain")
    lines = [line for line in answer.content.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def money() -> dict[str, float]:
    return {name: value for name, value in samples().items() if not name.startswith(OF_FLEET)}


def run(hours_ago: int, **findings: dict[str, Any]) -> Reconciliation:
    at = timezone.now() - timedelta(hours=hours_ago)
    made = Reconciliation.objects.create(started_at=at, finished_at=at, inconsistent_requests=2, not_counted=1)
    for replica, values in findings.items():
        made.findings.create(replica=replica.replace("_", "-"), replica_epoch=1, **values)
    return made


def drift(prompt: int, completion: int) -> dict[str, Any]:
    verdict = Verdict.UNEXPLAINED if prompt or completion else Verdict.EXPLAINED
    return {"verdict": verdict, "unexplained_prompt_tokens": prompt, "unexplained_completion_tokens": completion}


@pytest.fixture
def replicas() -> None:
    pool = Pool.objects.create(model=Model.objects.create(public_id="m"))
    for name in ("rep-1", "rep-2"):
        Replica.objects.create(id=name, pool=pool, upstream_model="m", changed_at=timezone.now())


@pytest.mark.usefixtures("_token", "replicas")
def test_the_last_runs_drift_is_added_up_without_signs_by_kind_of_engine() -> None:
    run(30, rep_1=drift(1000, 1000))
    newest = run(1, rep_1=drift(7, 0), rep_2=drift(-5, 3), gone=drift(0, 2), away={"verdict": Verdict.NOT_COUNTED})
    Reconciliation.objects.create(started_at=timezone.now())  # it is not done
    assert newest.finished_at is not None
    assert money() == {
        'headway_unexplained_drift_tokens{engine_kind="vllm",token_kind="prompt"}': 12,
        'headway_unexplained_drift_tokens{engine_kind="vllm",token_kind="completion"}': 3,
        'headway_unexplained_drift_tokens{engine_kind="unknown",token_kind="prompt"}': 0,
        'headway_unexplained_drift_tokens{engine_kind="unknown",token_kind="completion"}': 2,
        "headway_inconsistent_requests": 2,
        "headway_not_counted_engines": 1,
        "headway_reconciliation_finished_seconds": newest.finished_at.timestamp(),
    }


@pytest.mark.usefixtures("_token", "replicas")
def test_a_clean_run_says_nought_and_none_says_nothing() -> None:
    assert money() == {}
    run(1, rep_1=drift(0, 0))
    assert samples()['headway_unexplained_drift_tokens{engine_kind="vllm",token_kind="prompt"}'] == 0


@pytest.mark.usefixtures("_token")
def test_who_has_not_the_token_gets_no_figure_logged_in_or_not(client: Client) -> None:
    run(1, rep_1=drift(7, 7))
    answers = [client.get("/metrics"), Client().get("/metrics"), scraped("wrong"), scraped(""), scraped("ü")]
    answers.append(Client().get("/metrics", headers={"authorization": TOKEN}))
    for answer in answers:
        assert (answer.status_code, answer["www-authenticate"]) == (401, "Bearer")
        assert b"drift" not in answer.content
    assert Client().post("/metrics", headers={"authorization": f"Bearer {TOKEN}"}).status_code in (403, 405)


def test_without_a_token_that_is_set_there_is_no_such_page() -> None:
    assert scraped("").status_code == scraped().status_code == 404


@pytest.mark.usefixtures("_token")
def test_pools_their_scaling_and_their_starts_are_told_by_model() -> None:
    pool, now = scaled_pool(warm_replicas=1), timezone.now()
    have(2, warm=1)
    first, second, third = Replica.objects.order_by("created_at", "id")
    for replica, state in ((first, ReplicaState.READY), (second, ReplicaState.STARTING), (third, ReplicaState.WARM)):
        Replica.objects.filter(pk=replica.pk).update(state=state)
    Pool.objects.update(desired_replicas=2)
    reasons = [("backlog", 120, ""), ("idle", 50, ""), ("backlog", 40, ""), (WOKEN, 30, ""), ("backlog", 20, "no room")]
    for reason, minutes_ago, problem in reasons:
        at = now - timedelta(minutes=minutes_ago)
        ScaleDecision.objects.create(pool=pool, at=at, before=1, desired=2, reason=reason, problem=problem)
    WakeUp.objects.create(pool=pool, asked_at=now - timedelta(seconds=30), asked_by="d")
    for load_s in (3, 5, 50):
        began = now - timedelta(minutes=10)
        moments = [began + timedelta(seconds=after) for after in (1, 2, 2 + load_s, 3 + load_s)]
        names = ("staging_at", "starting_at", "certifying_at", "up_at")
        ReplicaStart.objects.create(pool=pool, replica="r", requested_at=began, **dict(zip(names, moments, strict=True)))
    told = samples()
    replicas = {state: told[f'headway_pool_replicas{{model="m",state="{state}"}}'] for state in ("desired", "serving", "warm")}
    assert replicas == {"desired": 2, "serving": 1, "warm": 1}
    assert told['headway_pool_replicas{model="m",state="starting"}'] == 1
    assert told['headway_pool_max_replicas{model="m"}'] == 5
    decisions = {name: value for name, value in told.items() if name.startswith("headway_scale_decisions")}
    assert decisions == {
        'headway_scale_decisions{model="m",reason="backlog"}': 2,
        'headway_scale_decisions{model="m",reason="idle"}': 1,
    }
    assert told['headway_scale_problem{model="m"}'] == 1
    assert told['headway_wake_ups{model="m"}'] == 1
    assert 30 <= told['headway_waits_to_wake_seconds{model="m"}'] < 300
    assert told['headway_replica_start_seconds{model="m",part="load"}'] == 5
    assert told['headway_replica_start_seconds{model="m",part="total"}'] == 8
    assert not any(name.startswith("headway_rollout") for name in told)


@pytest.mark.usefixtures("_token")
def test_the_newest_rollout_of_a_model_is_told_with_its_state(settings: Any) -> None:
    settings.TWO_PERSON_RULE = False
    cast = Cast()
    abort_rollout(rollout=cast.draft(), actor="test")
    rollout = cast.started()
    cast.until(rollout, RolloutState.CANARY, share_ppm=50_000)
    told = {name: value for name, value in samples().items() if name.startswith("headway_rollout")}
    assert told == {
        'headway_rollout_state{model="m",state="canary"}': 1,
        'headway_rollout_share_ratio{model="m"}': 0.05,
        'headway_rollout_changed_seconds{model="m"}': Rollout.objects.get(pk=rollout.pk).changed_at.timestamp(),
        'headway_rollout_waits_for_approval{model="m"}': 0,
    }
    settings.TWO_PERSON_RULE = True
    Rollout.objects.filter(pk=rollout.pk).update(approval_asked_at=timezone.now())
    assert samples()['headway_rollout_waits_for_approval{model="m"}'] == 1


@pytest.mark.usefixtures("_token")
def test_figures_take_as_many_queries_for_one_pool_as_for_many(django_assert_max_num_queries: Any) -> None:
    for number in range(12):
        Pool.objects.create(model=Model.objects.create(public_id=f"m{number}"), name=f"m{number}")
    with django_assert_max_num_queries(12):
        told = samples()
    assert sum(name.startswith("headway_pool_replicas") for name in told) == 12 * 6
