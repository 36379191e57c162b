"""Two real engines, of which one dies or hangs under running answers: all go on at the other one, as if nothing had been."""

import contextlib
import json
import os
import signal
import threading
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.chaos.conftest import MAX_IN_FLIGHT, Pair
from tests.e2e.conftest import TINY
from tests.e2e.installation import eventually

NUM_STREAMS = 16
NUM_SAMPLED = MAX_IN_FLIGHT - NUM_STREAMS
MAX_TOKENS = 600
GATEWAY_SETTINGS = {"HEADWAY_UPSTREAM_INTER_EVENT_S": "4"}


@dataclass
class Ask:
    """One request and what came of it."""

    path: str
    body: dict[str, Any]
    is_streamed: bool = True
    text: str = ""
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    num_events: int = 0
    error: str = ""

    def run(self, service: Pair) -> None:
        headers = {"authorization": f"Bearer {service.key}"}
        body = {**self.body, "model": TINY, "stream": self.is_streamed}
        if self.is_streamed:
            body["stream_options"] = {"include_usage": True}
        try:
            with httpx.stream(
                "POST", service.installation.url + self.path, json=body, headers=headers, timeout=120
            ) as response:
                assert response.status_code == 200, response.read()
                if self.is_streamed:
                    for line in response.iter_lines():
                        if line.startswith("data: {"):
                            self._take(json.loads(line[6:]))
                else:
                    response.read()
                    self._take(response.json())
        except (httpx.HTTPError, AssertionError) as error:
            self.error = repr(error)

    def _take(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            self.error = json.dumps(chunk)
            return
        self.usage = chunk.get("usage") or self.usage
        self.num_events += 1
        for choice in chunk["choices"]:
            part = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
            self.text += part.get("content") or ""
            self.finish_reason = choice["finish_reason"] or self.finish_reason

    @property
    def outcome(self) -> tuple[str, str | None, Any, Any]:
        return self.text, self.finish_reason, self.usage.get("prompt_tokens"), self.usage.get("completion_tokens")


def asks() -> list[Ask]:
    """Greedy all of them; tokens of the tiny model are random, many are parts of characters."""
    made = []
    for number in range(NUM_STREAMS):
        words = f"Tell me about train {number}: 🚆 Köln 東京"
        body: dict[str, Any] = {"temperature": 0, "max_tokens": MAX_TOKENS, "ignore_eos": True}
        if number % 4 == 2:
            body["repetition_penalty"] = 1.1
        if number % 4 == 3:
            body["stop"] = ["a text of some length that never comes", "\n\n\n\n"]
        if number % 2:
            made.append(Ask("/v1/completions", {**body, "prompt": words}, is_streamed=number != 5))
        else:
            messages = [{"role": "user", "content": words}]
            made.append(Ask("/v1/chat/completions", {**body, "messages": messages}, is_streamed=number != 4))
    return made


def sampled_asks() -> list[Ask]:
    """Drawn at random, with stop strings: the engine holds text back, and would draw the rest of a token otherwise."""
    stop = ["a text of some length that never comes"]
    body = {"prompt": "🚆", "temperature": 1, "max_tokens": MAX_TOKENS, "ignore_eos": True, "stop": stop}
    return [Ask("/v1/completions", body) for _ in range(NUM_SAMPLED)]


def run_all(service: Pair, asked: list[Ask]) -> list[threading.Thread]:
    threads = [threading.Thread(target=ask.run, args=(service,), daemon=True) for ask in asked]
    for thread in threads:
        thread.start()
    return threads


def join_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def undisturbed(service: Pair) -> list[Ask]:
    service.wait_for_two()
    before = len(service.installation.usage())
    asked = asks()
    join_all(run_all(service, asked))
    service.installation.wait_usage(before + NUM_STREAMS)
    return asked


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["kill -9", "hang"])
def test_b30_a_replica_dies_under_sixteen_streams_and_all_are_whole(
    service: Pair, undisturbed: list[Ask], number: signal.Signals
) -> None:
    service.wait_for_two()
    before = len(service.installation.usage())
    asked, sampled = asks(), sampled_asks()
    threads = run_all(service, [*asked, *sampled])
    streamed = [ask for ask in [*asked, *sampled] if ask.is_streamed]
    eventually(lambda: min(ask.num_events for ask in streamed) >= 10, within_s=30, every_s=0.01, what="all have begun")
    victim = next(iter(service.runs().values()))
    os.killpg(victim.session, number)
    join_all(threads)
    with contextlib.suppress(ProcessLookupError):  # the watchdog may have ended the one that hangs
        os.killpg(victim.session, signal.SIGKILL)
    assert [ask.error for ask in asked] == [""] * NUM_STREAMS
    for ask, whole in zip(asked, undisturbed, strict=True):
        assert ask.outcome == whole.outcome, (ask.path, ask.body)
    for ask in sampled:
        assert (ask.error, ask.finish_reason, ask.usage["completion_tokens"]) == ("", "length", MAX_TOKENS)
    records = service.installation.wait_usage(before + NUM_STREAMS + NUM_SAMPLED)[before:]
    assert len(records) == NUM_STREAMS + NUM_SAMPLED
    assert {record["end_state"] for record in records} == {"done"}
    made = sorted(record["completion_tokens"] for record in records)
    assert made == sorted(ask.usage["completion_tokens"] for ask in [*undisturbed, *sampled])
    resumed = sum(record["attempts"] > 1 for record in records)
    assert resumed >= NUM_STREAMS // 4, f"{resumed} went on at the other replica"
