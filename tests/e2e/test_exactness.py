"""At temperature 0 in float32 a reply through the gateway is the reply of the engine, to the byte."""

import json
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import SMALL, TINY, Service

PROMPTS = [
    "What is the capital of France?",
    "Repeat exactly: 你好🙂안녕👩‍👩‍👧é",
    "Schreibe einen Satz über Züge.",
    'Say "quotes" and \\backslashes\\ and\nnew lines.',
]


def ask(client: httpx.Client, path: str, body: dict[str, Any], headers: dict[str, str]) -> list[dict[str, Any]]:
    """The choices of a reply; a streamed one as its events' choices."""
    response = client.post(path, json=body, headers=headers)
    assert response.status_code == 200, response.text
    if not body["stream"]:
        return list(response.json()["choices"])
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    return [choice for event in events for choice in json.loads(event)["choices"]]


def text_of(choices: list[dict[str, Any]]) -> str:
    parts = (choice.get("delta") or choice.get("message") or {"content": choice.get("text")} for choice in choices)
    return "".join(part.get("content") or "" for part in parts)


def ends_of(choices: list[dict[str, Any]]) -> list[str]:
    return [choice["finish_reason"] for choice in choices if choice["finish_reason"]]


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("model", [SMALL, TINY])
def test_replies_are_identical_direct_and_through_the_gateway(service: Service, model: str, prompt: str) -> None:
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}]}),
        ("/v1/completions", {"prompt": prompt}),
    ]
    gateway = httpx.Client(base_url=service.installation.url, timeout=120)
    with service.installation.engine(model) as engine, gateway:
        for path, body in bodies:
            replies = [
                ask(client, path, {**body, "model": model, "max_tokens": 24, "temperature": 0, "stream": stream}, headers)
                for client, headers in ((engine, {}), (gateway, service.headers))
                for stream in (False, True)
            ]
            texts = [text_of(reply) for reply in replies]
            assert len(set(texts)) == 1, texts
            assert texts[0] or path == "/v1/completions"  # raw text may be answered by an end at once
            assert len({tuple(ends_of(reply)) for reply in replies}) == 1


def test_generate_gives_the_same_reply(service: Service) -> None:
    gateway = httpx.Client(base_url=service.installation.url, timeout=120, headers=service.headers)
    messages = [{"role": "user", "content": PROMPTS[0]}]
    options: dict[str, Any] = {"model": SMALL, "max_tokens": 16, "temperature": 0}
    with gateway:
        chat = ask(gateway, "/v1/chat/completions", {**options, "messages": messages, "stream": False}, {})
        for stream in (False, True):
            generated = ask(
                gateway, "/v1/generate", {**options, "messages": messages, "stream": stream, "priority": "interactive"}, {}
            )
            assert text_of(generated) == text_of(chat)
        prompted = ask(gateway, "/v1/generate", {**options, "prompt": PROMPTS[0], "stream": True}, {})
        assert text_of(prompted) == text_of(
            ask(gateway, "/v1/completions", {**options, "prompt": PROMPTS[0], "stream": False}, {})
        )
