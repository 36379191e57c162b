"""What the site tells Prometheus of the last reconciliation, and whom."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from billing.models import Reconciliation, Verdict
from inference.models import Model, Pool, Replica
from tests.dashboard.operators import client, operator

__all__ = ["client", "operator"]  # fixtures
pytestmark = pytest.mark.django_db
TOKEN = "a-token-of-the-tests"


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
    assert samples() == {
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
    assert samples() == {}
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
