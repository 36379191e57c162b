"""Requests whose replicas die, and what their clients read: for the tests of resuming."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from tests.fakes.gateway import GatewayUnderTest, basic, model_changes, running_gateway
from tests.fakes.replica import ScriptedReplica
from tests.fakes.token_engine import PROMPT_IDS, TokenEngine, dying

TEXT = "Zug 🚆 nach Köln, 東京 und 👩‍👩‍👧 »zurück« END. Und weiter 🙂 bis ENDE"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MAX_TOKENS = 200
AT_ONCE = 16


def body_for(path: str, **more: Any) -> dict[str, Any]:
    body = basic(**{"temperature": 0, "max_tokens": MAX_TOKENS, **more})
    if body.get("stream"):
        body["stream_options"] = {"include_usage": True}
    return body if path == CHAT else {**{name: body[name] for name in body if name != "messages"}, "prompt": "hi"}


@dataclass
class Told:
    """What a client read."""

    text: str
    finish_reason: str | None
    stop_reason: Any
    usage: Any
    chunks: list[dict[str, Any]]


def read(answer: Any) -> Told:
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"] == "application/json":
        whole = answer.json()
        choice = whole["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        return Told(text, choice["finish_reason"], choice.get("stop_reason"), whole["usage"], [])
    events = [line[6:] for line in answer.text.split("\n\n") if line.startswith("data: ")]
    assert events.pop() == "[DONE]", answer.text[-400:]
    return read_chunks([json.loads(event) for event in events])


def read_chunks(chunks: list[dict[str, Any]]) -> Told:
    assert not any("error" in chunk for chunk in chunks), chunks[-1]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    text = "".join(choice["delta"].get("content") or "" if "delta" in choice else choice["text"] for choice in choices)
    ends = [choice for choice in choices if choice["finish_reason"]]
    assert len(ends) == 1
    usages = [chunk["usage"] for chunk in chunks if chunk.get("usage") and not chunk["choices"]]
    return Told(text, ends[0]["finish_reason"], ends[0].get("stop_reason"), usages[-1] if usages else None, chunks)


@contextlib.asynccontextmanager
async def three_replicas(engine: TokenEngine, **options: Any) -> AsyncIterator[GatewayUnderTest]:
    """Serve the model `m` of three replicas that are the same engine."""
    async with contextlib.AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(ScriptedReplica(default=engine.answer)) for _ in range(3)]
        changes = model_changes("m", [replica.url for replica in replicas], max_in_flight=AT_ONCE, max_queued=100)
        async with running_gateway(changes, **options) as gateway:
            yield gateway


async def cut_at(path: str, places: list[tuple[int, ...]], *, engine: TokenEngine, **fields: Any) -> list[Told]:
    """First the answer that was not disturbed, then one for each list of places at which its replicas die."""
    bodies = [body_for(path, **fields), *(body_for(path, **fields, user=dying(*place)) for place in places)]
    async with three_replicas(engine) as gateway:
        room = asyncio.Semaphore(AT_ONCE)

        async def ask(body: dict[str, Any]) -> Told:
            async with room:
                return read(await gateway.post(path, body))

        told = await asyncio.gather(*map(ask, bodies))
        records = gateway.journal.closed
        assert len(records) == len(gateway.journal.opened) == len(told)
        assert {record.end_state for record in records} == {"done"}
        assert {record.prompt_tokens for record in records} == {len(PROMPT_IDS)}
        made = sorted(record.completion_tokens for record in records)
        assert made == sorted(one.usage["completion_tokens"] for one in told)
        assert gateway.in_flight() == 0
    return told


def same(told: list[Told], *, stop: Any = ()) -> None:
    whole = told[0]
    longest = max(map(len, [stop] if isinstance(stop, str) else stop), default=0)
    for number, one in enumerate(told[1:], start=1):
        assert (number, one.text) == (number, whole.text)
        assert (number, one.finish_reason, one.stop_reason) == (number, whole.finish_reason, whole.stop_reason)
        assert len({(chunk["id"], chunk["object"], chunk["created"], chunk["model"]) for chunk in one.chunks}) <= 1
        assert one.usage["prompt_tokens"] == whole.usage["prompt_tokens"]
        # A stop string over the cut is found when the engine has told its end: as many tokens late as it is long, at most.
        late = one.usage["completion_tokens"] - whole.usage["completion_tokens"]
        assert 0 <= late <= (longest * 4 if one.stop_reason else 0)
    assert sum(one.usage == whole.usage for one in told) > len(told) / 2
