"""An answer whose replica dies goes on at another one: same stream, one record, nothing lost or doubled, at every offset."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest

from inference.gateway.parts import GatewayTunables
from tests.fakes.gateway import GatewayUnderTest, basic, model_changes, running_gateway, until
from tests.fakes.replica import ScriptedReplica, chat_events, streamed
from tests.fakes.token_engine import PROMPT_IDS, TokenEngine

TEXT = "Zug 🚆 nach Köln, 東京 und 👩‍👩‍👧 »zurück« END. Und weiter 🙂 bis ENDE"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MAX_TOKENS = 200


def body_for(path: str, **more: Any) -> dict[str, Any]:
    body = basic(temperature=0, **{"max_tokens": MAX_TOKENS, **more})
    return body if path == CHAT else {**{name: body[name] for name in body if name != "messages"}, "prompt": "hi"}


@dataclass
class Told:
    """What a client read."""

    text: str
    finish_reason: str | None
    stop_reason: Any
    usage: Any
    chunks: list[dict[str, Any]]


def read(answer: Any, *, is_streamed: bool) -> Told:
    assert answer.status_code == 200, answer.text
    if not is_streamed:
        whole = answer.json()
        choice = whole["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        return Told(text, choice["finish_reason"], choice.get("stop_reason"), whole["usage"], [])
    events = [line[6:] for line in answer.text.split("\n\n") if line.startswith("data: ")]
    assert events.pop() == "[DONE]", answer.text[-400:]
    chunks = [json.loads(event) for event in events]
    assert not any("error" in chunk for chunk in chunks), chunks[-1]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    text = "".join(choice["delta"].get("content") or "" if "delta" in choice else choice["text"] for choice in choices)
    ends = [choice for choice in choices if choice["finish_reason"]]
    assert len(ends) == 1
    usages = [chunk["usage"] for chunk in chunks if chunk.get("usage") and not chunk["choices"]]
    return Told(text, ends[0]["finish_reason"], ends[0].get("stop_reason"), usages[-1] if usages else None, chunks)


async def cut_everywhere(path: str, *, is_streamed: bool, engine: dict[str, Any] | None = None, **fields: Any) -> list[Told]:
    """The answer with its replica dying after each number of tokens, after one that was not disturbed."""
    model = TokenEngine(TEXT, **(engine or {}))
    told: list[Told] = []
    body = body_for(path, stream=is_streamed, **fields)
    if is_streamed:
        body["stream_options"] = {"include_usage": True}
    async with ScriptedReplica(default=model.answer) as one, ScriptedReplica(default=model.answer) as two:
        async with running_gateway(model_changes("m", [one.url, two.url])) as gateway:
            for dies_after in (None, *range(1, len(model.pieces()) + 1)):
                model.dies_after = dies_after
                told.append(read(await gateway.post(path, body), is_streamed=is_streamed))
                if dies_after is not None and model.dies_after is not None:
                    break  # it was at its end before
            await check_records(gateway, told)
    for one in told:
        # A stop string over a cut is found as soon as its end was told: a few tokens late at most.
        late: int = one.usage["completion_tokens"] - told[0].usage["completion_tokens"]
        assert 0 <= late <= (len("".join(fields.get("stop", ""))) * 4 if one.stop_reason else 0)
    return told


async def check_records(gateway: GatewayUnderTest, told: list[Told]) -> None:
    records = gateway.journal.closed
    assert len(records) == len(gateway.journal.opened) == len(told)
    for record, one in zip(records, told, strict=True):
        assert (record.end_state, record.finish_reason) == ("done", one.finish_reason)
        assert (record.prompt_tokens, record.completion_tokens) == (len(PROMPT_IDS), one.usage["completion_tokens"])
    assert gateway.in_flight() == 0


def same(told: list[Told]) -> None:
    whole = told[0]
    for number, one in enumerate(told[1:], start=1):
        assert (number, one.text) == (number, whole.text)
        assert (number, one.finish_reason, one.stop_reason) == (number, whole.finish_reason, whole.stop_reason)
        assert one.usage["prompt_tokens"] == whole.usage["prompt_tokens"] == len(PROMPT_IDS)
        assert len({(chunk["id"], chunk["object"], chunk["created"], chunk["model"]) for chunk in one.chunks}) <= 1


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "a stop string": {"stop": "END"},
    "a long stop string that never comes": {"stop": ["nichts davon kommt vor"]},
    "stop strings of many lengths": {"stop": ["weiter 🙂 b", "E", "zurück« END. U"]},
    "a stop string that is part of the answer": {"stop": ["END. Und"], "include_stop_str_in_output": True},
    "a stop string of emoji": {"stop": "👩‍👩‍👧 »"},
    "a limit": {"max_tokens": 19},
    "at least some tokens": {"stop": "E", "min_tokens": 32},
}


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("variant", VARIANTS)
async def test_b30_an_answer_that_goes_on_is_the_one_that_was_not_disturbed(path: str, variant: str, is_streamed: bool) -> None:
    told = await cut_everywhere(path, is_streamed=is_streamed, **VARIANTS[variant])
    same(told)
    assert len(told) > 8


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "engine",
    [
        {"tokens_an_event": 3},
        {"can_detokenise": False},
        {"token_bytes": 1},
        {"token_bytes": 7, "tokens_an_event": 2},
        {"tokens_an_event": 4, "can_detokenise": False},
    ],
    ids=str,
)
async def test_whatever_an_event_holds_nothing_is_lost_or_doubled(engine: dict[str, Any], variant: str) -> None:
    same(await cut_everywhere(CHAT, is_streamed=True, engine=engine, **VARIANTS[variant]))
