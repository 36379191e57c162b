"""The gateway counts a prompt as its engine does, and refuses what does not fit before any engine sees it."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from inference.tokenising.bundle import decode_bundle
from inference.tokenising.counter import PromptCounter, Recall
from inference.tokenising.segments import SegmentMemory
from tests.e2e.conftest import SMALL, TINY, Service
from tests.e2e.installation import eventually

SAMPLE = Path(__file__).resolve().parents[1] / "data" / "evals"
SETS = ("gsm8k_test", "ifeval_en", "ifeval_ja", "mt_bench_question")
MEMORY = SegmentMemory(1024 * 1024)
CONTEXT = 2048  # installation.ENGINE_ARGS


def texts_of(folder: Path, name: str) -> list[str]:
    """First turns."""
    rows = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    return [row.get("question") or row.get("prompt") or row["turns"][0] for row in rows]


@pytest.fixture(scope="module")
def counters(service: Service) -> list[PromptCounter]:
    """All that the gateway has fetched; both models may share one."""
    folder = service.installation.home / "tokenisers"
    eventually(
        lambda: folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()),
        within_s=20,
        what="tokenisers",
    )
    return [PromptCounter(decode_bundle(path.read_bytes())) for path in folder.iterdir() if not path.name.startswith(".")]


@pytest.fixture(params=[TINY, SMALL])
def engine(request: pytest.FixtureRequest, service: Service) -> Iterator[tuple[httpx.Client, str]]:
    with service.installation.engine(request.param) as client:
        yield client, request.param


def ask(client: httpx.Client, model: str, path: str, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    response = client.post(path, json={"model": model, "temperature": 0, **body}, **more)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def engine_counts(client: httpx.Client, model: str, body: dict[str, Any]) -> int:
    """From the usage of a real one-token answer where the model is quick, from the engine's /tokenize otherwise."""
    if model == TINY:
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        return int(ask(client, model, path, {**body, "max_tokens": 1})["usage"]["prompt_tokens"])
    return int(ask(client, model, "/tokenize", body)["count"])


def check(client: httpx.Client, model: str, counters: list[PromptCounter], body: dict[str, Any]) -> None:
    theirs = engine_counts(client, model, body)
    for counter in counters:
        for recall in (None, Recall(MEMORY, b"salt"), Recall(MEMORY, b"salt")):
            ours = counter.chat(body, memory=recall) if "messages" in body else sum(counter.prompts(body, memory=recall))
            assert ours == theirs, f"{ours} here, {theirs} at the engine"


def user(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def test_what_was_checked_at_certification_is_all_of_it(counters: list[PromptCounter]) -> None:
    for counter in counters:
        bundle = counter.bundle
        assert (bundle.counts_chat, bundle.counts_parts, bundle.counts_tools, bundle.counts_prompts) == (True,) * 4


@pytest.mark.parametrize("name", SETS)
def test_chats_of_public_sets_are_counted_exactly(
    engine: tuple[httpx.Client, str], counters: list[PromptCounter], name: str
) -> None:
    for text in texts_of(SAMPLE, name):
        check(*engine, counters, user(text))


@pytest.mark.parametrize("name", SETS)
def test_raw_prompts_of_public_sets_are_counted_exactly(
    engine: tuple[httpx.Client, str], counters: list[PromptCounter], name: str
) -> None:
    for text in texts_of(SAMPLE, name):
        check(*engine, counters, {"prompt": text})


def second_turns(client: httpx.Client, model: str, counters: list[PromptCounter], folder: Path, limit: int) -> None:
    rows = [json.loads(line) for line in (folder / "mt_bench_question.jsonl").read_text().splitlines()][:limit]
    for row in rows:
        first = user(row["turns"][0])
        reply = ask(client, model, "/v1/chat/completions", {**first, "max_tokens": 32})["choices"][0]["message"]["content"]
        said = [*first["messages"], {"role": "assistant", "content": reply}, {"role": "user", "content": row["turns"][1]}]
        check(client, model, counters, {"messages": said})


def test_second_turns_after_the_models_own_reply_are_counted_exactly(
    engine: tuple[httpx.Client, str], counters: list[PromptCounter]
) -> None:
    second_turns(*engine, counters, SAMPLE, limit=20 if engine[1] == TINY else 4)


ODD: list[dict[str, Any]] = [
    user(""),
    user(" \n\t "),
    user("<|im_start|>system\nno<|im_end|>"),
    user("🙂👩‍👩‍👧é e\u0301 \ufeff\u200b"),
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
    {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "y", "name": "z"}]},
    {"messages": [{"role": "developer", "content": "x"}, {"role": "user", "content": "y"}]},
    {"messages": [{"role": "user", "content": "y"}, {"role": "developer", "content": "x"}, {"role": "system", "content": "w"}]},
    {"messages": [{"role": "user", "content": "y"}, {"role": "assistant", "content": None}]},
    {
        "messages": [{"role": "user", "content": "y"}, {"role": "assistant", "content": "It is "}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    {**user("y"), "add_generation_prompt": False},
    {**user("y"), "add_special_tokens": True},
    {**user("y"), "chat_template_kwargs": {"enable_thinking": False, "more": [1]}},
    {"prompt": "<|im_end|> a"},
    {"prompt": "a", "add_special_tokens": False},
]


@pytest.mark.parametrize("body", ODD)
def test_odd_requests_are_counted_exactly(service: Service, counters: list[PromptCounter], body: dict[str, Any]) -> None:
    with service.installation.engine(TINY) as client:
        check(client, TINY, counters, body)


def test_token_ids_and_lists_of_prompts_are_counted_exactly(service: Service, counters: list[PromptCounter]) -> None:
    prompts: list[Any] = ["one two", ["one two", "three"], [5, 6, 7], [[5, 6], [7, 8, 9]]]
    with service.installation.engine(TINY) as client:
        for prompt in prompts:
            check(client, TINY, counters, {"prompt": prompt})


@pytest.mark.soak
def test_the_whole_sets_are_counted_exactly(engine: tuple[httpx.Client, str], counters: list[PromptCounter]) -> None:
    if "EVAL_DIR" not in os.environ:
        pytest.fail("set EVAL_DIR to a folder with the whole sets")
    folder = Path(os.environ["EVAL_DIR"])
    for name in SETS:
        for text in texts_of(folder, name):
            check(*engine, counters, user(text))
            check(*engine, counters, {"prompt": text})
    second_turns(*engine, counters, folder, limit=80 if engine[1] == TINY else 20)


# -- through the gateway


def of_length(counter: PromptCounter, num_tokens: int) -> str:
    """A text whose chat has exactly so many tokens."""
    text = "a" + " a" * (num_tokens - counter.chat(user("a")))
    assert counter.chat(user(text)) == num_tokens
    return text


@pytest.fixture
def gateway(service: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.installation.url, headers=service.headers, timeout=120) as client:
        yield client


def test_a_long_prompt_without_a_limit_gets_the_room_that_is_left(gateway: httpx.Client, counters: list[PromptCounter]) -> None:
    body = user(of_length(counters[0], 1900))
    usage = ask(gateway, TINY, "/v1/chat/completions", body)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (1900, CONTEXT - 1900)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("num_tokens", "max_tokens"), [(CONTEXT, None), (CONTEXT + 1, None), (CONTEXT * 100, None), (CONTEXT, 1), (2000, 49)]
)
def test_b87_what_does_not_fit_the_context_is_refused_with_the_numbers(
    service: Service,
    gateway: httpx.Client,
    counters: list[PromptCounter],
    num_tokens: int,
    max_tokens: int | None,
    is_streamed: bool,
) -> None:
    before = service.installation.count_usage(service.key)
    text = of_length(counters[0], num_tokens)
    limit = {} if max_tokens is None else {"max_tokens": max_tokens}
    body = {"model": TINY, **user(text), "stream": is_streamed, **limit}
    response = gateway.post("/v1/chat/completions", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    assert f"{CONTEXT} tokens" in error["message"]
    assert num_tokens > 2 * CONTEXT or str(num_tokens) in error["message"]
    (record,) = service.installation.wait_usage(before + 1)[before:]
    assert record["request_id"] == response.headers["x-request-id"]
    assert (record["end_state"], record["attempts"], record["completion_tokens"]) == ("refused", 0, 0)


def test_what_just_fits_is_answered(gateway: httpx.Client, counters: list[PromptCounter]) -> None:
    body = {**user(of_length(counters[0], 2000)), "max_tokens": 48}
    usage = ask(gateway, TINY, "/v1/chat/completions", body)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (2000, 48)


def test_of_several_prompts_the_longest_must_fit(gateway: httpx.Client) -> None:
    body = {"model": TINY, "prompt": [[5] * 10, [5] * CONTEXT]}
    response = gateway.post("/v1/completions", json=body)
    assert response.json()["error"]["param"] == "prompt"
    usage = ask(gateway, TINY, "/v1/completions", {"prompt": [[5] * 10, [5] * (CONTEXT - 1)]})["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (10 + CONTEXT - 1, 2)


def test_a_prompt_that_is_truncated_fits(gateway: httpx.Client, counters: list[PromptCounter]) -> None:
    body = {**user(of_length(counters[0], 3000)), "truncate_prompt_tokens": 100, "max_tokens": 4}
    assert ask(gateway, TINY, "/v1/chat/completions", body)["usage"]["prompt_tokens"] == 100
