"""One row of docs/billing.md's table of end states each."""

import re
from pathlib import Path

import pytest

from billing.services.rating import ANSWER_ONLY, WHOLE, amount_of
from inference.gateway.answer import Usage
from inference.policy.decisions import TokenPrice

PRICE = TokenPrice(input_micros=1_000_000, cached_micros=100_000, output_micros=2_000_000)
USAGE = Usage(prompt_tokens=100, cached_tokens=40, completion_tokens=10)
PROMPT, ANSWER = 60 + 4, 20


@pytest.mark.parametrize(
    ("end_state", "amount"),
    [
        ("done", PROMPT + ANSWER),
        ("client_gone_before_first_token", 0),
        ("client_gone_after_first_token", PROMPT + ANSWER),
        ("engine_error", ANSWER),
        ("engine_died", ANSWER),
        ("deadline", ANSWER),
        ("cut_by_drain", ANSWER),
        ("gateway_lost", ANSWER),
        ("refused", 0),
    ],
)
def test_each_end_state_has_its_rule(end_state: str, amount: int) -> None:
    assert amount_of(end_state, USAGE, PRICE) == amount
    assert amount_of(end_state, None, PRICE) == 0


def test_the_documents_table_has_the_same_end_states() -> None:
    text = (Path(__file__).parents[2] / "docs" / "billing.md").read_text()
    billed = {row[0]: row[1] for row in re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", text, re.MULTILINE)}
    assert {name for name, rule in billed.items() if rule.startswith("prompt + completion")} == WHOLE
    assert {name for name, rule in billed.items() if rule.startswith("completion sent")} == ANSWER_ONLY
