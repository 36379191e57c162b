"""`rollout`, `pin_version`, `announce_retirement --version`: what an operator types."""

import json
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from inference.rollout_models import Rollout, RolloutState
from tenants.models import WebhookEvent
from tests.inference.services.rollout_cast import Cast
from tests.tenants.cast import tenant_with

pytestmark = pytest.mark.django_db


@pytest.fixture
def cast() -> Cast:
    return Cast()


def run(*words: str) -> str:
    out = StringIO()
    call_command(*words, stdout=out)
    return out.getvalue()


def asked(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*words, "--json"))
    return found


def test_a_rollout_is_drafted_with_its_steps_and_gates(cast: Cast) -> None:
    words = "rollout create m --to v2 --steps 2.5,50 --step-s 30 --min-samples 40 --window-s 60 --kept-warm 1"
    found = asked(*words.split(), "--gate", "ttft_p95_ratio=3", "--gate", "max_length_rise=off")
    step = {"min_duration_s": 30, "min_samples": 40}
    assert found["schedule"]["steps"] == [{"share_ppm": 25_000, **step}, {"share_ppm": 500_000, **step}]
    assert (found["gates"]["ttft_p95_ratio"], found["gates"]["max_length_rise"]) == (3, None)
    assert (found["state"], found["window_s"], found["kept_warm"], found["from"], found["to"]) == ("draft", 60, 1, "v1", "v2")


def test_a_rollout_is_run_by_commands(cast: Cast) -> None:
    number = str(asked("rollout", "create", "m", "--to", "v2", "--start")["id"])
    assert asked("rollout", "pause", number, "--reason", "lunch")["state"] == "paused"
    assert "is paused: lunch" in run("rollout", "show", number)
    assert asked("rollout", "resume", number)["state"] == "staging"
    cast.until(Rollout.objects.get(), RolloutState.CANARY)
    assert asked("rollout", "promote", number)["state"] == "canary"
    cast.until(Rollout.objects.get(), RolloutState.PROMOTED)
    assert asked("rollout", "rollback", number, "--reason", "no good")["state"] == "rolling_back"
    cast.until(Rollout.objects.get(), RolloutState.ROLLED_BACK)
    shown = run("rollout", "show", number)
    assert "no good" in shown
    assert "promoted" in shown
    assert [each["state"] for each in asked("rollout", "list", "--model", "m")["rollouts"]] == ["rolled_back"]


def test_a_scheduled_rollout_says_when(cast: Cast) -> None:
    at = (timezone.now() + timedelta(hours=1)).isoformat()
    assert asked("rollout", "create", "m", "--to", "v2", "--at", at)["scheduled_for"] == at


@pytest.mark.parametrize(
    "words",
    ["rollout pause 1", "rollout show 99", "rollout start x", "rollout create m --to v1", "rollout create m --to v9"],
)
def test_what_cannot_be_done_is_one_line(cast: Cast, words: str) -> None:
    cast.draft()
    with pytest.raises(CommandError):
        run(*words.split())


@pytest.mark.parametrize("words", ["--steps 5,x", "--steps 101", "--gate errors", "--gate max_error_rise=much", "--at noon"])
def test_options_that_mean_nothing_are_refused(cast: Cast, words: str) -> None:
    with pytest.raises(SystemExit):
        run("rollout", "create", "m", "--to", "v2", *words.split())
    assert not Rollout.objects.exists()


def test_a_tenant_is_pinned_and_told_when_its_version_retires(cast: Cast) -> None:
    acme, _stranger = tenant_with("acme"), tenant_with("stranger")
    assert asked("pin_version", "acme", "m", "v1") == {"tenant": "acme", "pins": {"m": "v1"}}
    number = str(asked("rollout", "create", "m", "--to", "v2", "--start")["id"])
    cast.until(Rollout.objects.get(), RolloutState.CANARY)
    run("rollout", "promote", number)
    cast.until(Rollout.objects.get(), RolloutState.PROMOTED)
    day = (timezone.now() + timedelta(days=30)).date().isoformat()
    assert asked("announce_retirement", "m", "--version", "v1", "--on", day) == {"told": 1}
    event = WebhookEvent.unscoped.get()
    assert event.tenant == acme
    assert (event.data["model"], event.data["version"]) == ("m", "v1")
    assert asked("pin_version", "acme", "m", "none") == {"tenant": "acme", "pins": {}}
