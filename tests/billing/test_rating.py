"""Each row of docs/billing.md's table of end states, read from there: what the words say is what is charged."""

import re
from pathlib import Path

import pytest

from billing.services.rating import amount_of
from inference.gateway import record
from inference.gateway.engine_usage import Usage
from inference.policy.decisions import TokenPrice

PRICE = TokenPrice(input_picos=1_000_001, cached_picos=100_003, output_picos=2_000_007)
USAGE = Usage(prompt_tokens=100, cached_tokens=40, completion_tokens=10)
PROMPT, ANSWER = 60 * 1_000_001 + 40 * 100_003, 10 * 2_000_007
RULES = {
    "prompt + completion": PROMPT + ANSWER,
    "prompt + completion so far": PROMPT + ANSWER,
    "completion sent so far": ANSWER,
    "completion sent so far, as far as that is known": ANSWER,
    "nothing": 0,
}
END_STATES = {
    record.DONE,
    record.CLIENT_GONE_BEFORE,
    record.CLIENT_GONE_AFTER,
    record.ENGINE_ERROR,
    record.ENGINE_DIED,
    record.DEADLINE,
    record.CUT_BY_DRAIN,
    record.GATEWAY_LOST,
    record.REFUSED,
}


def documented() -> list[tuple[str, str]]:
    text = (Path(__file__).parents[2] / "docs" / "billing.md").read_text()
    return re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", text, re.MULTILINE)


@pytest.mark.parametrize(("end_state", "rule"), documented())
def test_each_end_state_is_charged_as_the_document_says(end_state: str, rule: str) -> None:
    assert amount_of(end_state, USAGE, PRICE) == RULES[rule]
    assert amount_of(end_state, None, PRICE) == 0


def test_the_document_has_every_end_state_once() -> None:
    names = [name for name, _ in documented()]
    assert sorted(names) == sorted(END_STATES)


def test_an_end_state_nobody_has_heard_of_costs_nothing() -> None:
    assert amount_of("vanished", USAGE, PRICE) == 0
