"""The commands of plans, limits and prices: what they print, and one clear line for what is wrong."""

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from inference.models import Model
from tenants.services.tenants import create_tenant
from tenants.services.terms import define_plan

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def cast() -> None:
    create_tenant(name="acme", actor="test")
    Model.objects.create(public_id="tiny")
    define_plan(name="pay-as-you-go", actor="test")


def run(*arguments: str) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def run_json(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json"))


def test_set_plan_prints_what_holds() -> None:
    assert "acme: plan pay-as-you-go, weight 1" in run("set_plan", "acme", "pay-as-you-go")


def test_set_limits_prints_what_holds_afterwards() -> None:
    text = run("set_limits", "acme", "--rpm", "60", "--tpm-in", "1000", "--tpm-out", "500", "--concurrency", "3")
    for line in ("requests_per_minute", "input_tokens_per_minute", "output_tokens_per_minute", "concurrent_requests"):
        assert line in text
    assert "12.50 USD" in run("set_limits", "acme", "--budget-usd", "12.50")
    assert "requests_per_minute" not in run("set_limits", "acme", "--rpm", "none")
    assert len(run_json("set_limits", "acme")["limits"]) == 4


def test_a_limit_above_the_tenants_own_is_kept_and_told() -> None:
    run("set_limits", "acme", "--rpm", "10")
    assert "never reached: the tenant's own is 10" in run("set_limits", "acme", "--model", "tiny", "--rpm", "20")


def test_define_plan_prints_the_plan() -> None:
    text = run("define_plan", "gold", "--weight", "2", "--tier-ceiling", "standard", "--rpm", "5", "--max-tokens", "100")
    assert text.startswith("gold: weight 2.0, tier_ceiling standard, requests_per_minute 5, default_max_tokens 100")
    assert run_json("define_plan", "gold", "--max-tokens", "none")["default_max_tokens"] is None


def test_set_price_prints_the_prices_that_hold() -> None:
    run("set_price", "tiny", "--input-usd", "0.5", "--output-usd", "1.5")
    data = run_json("set_price", "tiny", "--input-usd", "0.25", "--cached-usd", "0.025", "--output-usd", "1", "--tier", "batch")
    assert [(row["tier"], row["version"], row["cached_usd"]) for row in data["prices"]] == [
        ("all", 1, "0.50"),
        ("batch", 2, "0.025"),
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["set_limits", "acme", "--rpm", "-5"], "--rpm must be a whole number above 0, or none: '-5'"),
        (["set_limits", "acme", "--rpm", "0"], "--rpm must be a whole number"),
        (["set_limits", "acme", "--tpm-in", "1e9"], "--tpm-in must be a whole number"),
        (["set_limits", "acme", "--budget-usd", "0"], "--budget-usd must be above 0"),
        (["set_limits", "acme", "--budget-usd", "-1"], "--budget-usd must be from 0"),
        (["set_limits", "acme", "--budget-usd", "nan"], "--budget-usd"),
        (["set_limits", "acme", "--model", "tiny", "--key", "k", "--rpm", "1"], "of a key or of a model, not of both"),
        (["set_limits", "acme", "--model", "nobody", "--rpm", "1"], "no model 'nobody'"),
        (["set_limits", "acme", "--key", "nobody", "--rpm", "1"], "acme has no key 'nobody'"),
        (["set_limits", "nobody", "--rpm", "1"], "no tenant 'nobody'"),
        (["set_plan", "acme", "nobody"], "there is no plan 'nobody'; there are: "),
        (["define_plan", "gold", "--weight", "heavy"], "--weight must be a number"),
        (["define_plan", "gold", "--tier-ceiling", "urgent"], "a tier is one of interactive, standard, batch"),
        (["set_price", "tiny", "--input-usd", "x", "--output-usd", "1"], "--input-usd must be US dollars"),
        (["set_price", "tiny", "--input-usd", "1", "--output-usd", "20000"], "--output-usd must be from 0 to 10000"),
        (["set_price", "tiny", "--input-usd", "0.0000001", "--output-usd", "1"], "at most six decimals"),
        (["set_price", "tiny", "--input-usd", "1", "--cached-usd", "2", "--output-usd", "1"], "cached tokens cannot cost more"),
        (["set_price", "nobody", "--input-usd", "1", "--output-usd", "1"], "no model 'nobody'"),
        (["set_price", "tiny", "--input-usd", "1", "--output-usd", "1", "--tier", "urgent"], "a tier is one of"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(arguments: list[str], says: str) -> None:
    with pytest.raises(CommandError) as caught:
        run(*arguments)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
