"""The fuzzers, for a few seconds and with a fixed seed; `make soak` runs them for long."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from inference.gateway.fields import CHAT, COMPLETIONS
from tests.fakes.replica import DONE, chat_chunk, chat_events, sse, text_events

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
REQUESTS = [
    {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8.0, "stream": True, "stop": ["a", "b"]},
    {"model": "m", "prompt": [[1, 2], [3]], "n": 2, "logprobs": 1, "echo": True, "logit_bias": {"5": -1.5}, "user": None},
    {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "\u00e9"}]}], "tools": [FUNCTION]},
    {"model": "m", "messages": [{"role": "assistant", "content": None, "tool_calls": [CALL]}], "priority": "batch"},
    {
        "model": "m",
        "messages": [{"role": "system", "content": "x"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
        "stream_options": {"include_usage": True},
    },
]
CHOICE = {"index": 0, "delta": {"tool_calls": [{"index": 1, "function": {"arguments": "{"}}]}, "finish_reason": None}
WORDS = [field.name for field in (*CHAT.fields, *COMPLETIONS.fields)]
WORDS += [
    "role",
    "content",
    "type",
    "text",
    "tool_calls",
    "choices",
    "delta",
    "index",
    "usage",
    "prompt_tokens",
    "error",
    "null",
]
WORDS += [
    "completion_tokens",
    "finish_reason",
    "[DONE]",
    "data: ",
    "\\x0d\\x0a",
    "\\\\ud83d",
    "1e999",
    "NaN",
    "-1",
    "{}",
    "[]",
    "[[",
    ": ",
]
ANSWERS = [
    b"".join(chat_events()),
    b"".join(text_events()).replace(b"\n", b"\r\n"),
    b": ping\n\n" + chat_chunk({"content": "x"}) + sse({"error": {"message": "inner broke", "code": 503}}) + DONE,
    sse({"choices": [CHOICE], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}) + DONE,
    b'data: {"choices":[{"index":0,"text":"a","logprobs":{"x":[-Infinity,NaN]}}]}\r\r',
]


def fuzz(name: str, seeds: list[bytes], folder: Path, *, runs: int, max_s: int) -> None:
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds):
        (corpus / str(number)).write_bytes(seed)
    words = folder / "words"
    words.write_text("".join(f'"{word}"\n' for word in WORDS))
    command = [sys.executable, "-m", f"tests.fuzz.{name}", str(corpus), f"-atheris_runs={runs}", f"-max_total_time={max_s}"]
    command += [f"-dict={words}", "-seed=1", "-max_len=4096", "-timeout=5", f"-artifact_prefix={folder}/"]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=max_s + 60)
    found = [path.read_bytes()[:500] for path in folder.glob("crash-*")]
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}{found}"
    assert "Done" in done.stdout + done.stderr, "it ran to its end"


def request_seeds() -> list[bytes]:
    """The fuzzers take what they choose by from the end."""
    return [json.dumps(request).encode() + bytes([1, number]) for request in REQUESTS for number in range(3)]


def answer_seeds() -> list[bytes]:
    return [answer + b"\0" * 20 for answer in ANSWERS]


def test_the_reader_of_requests_stands_any_bytes(tmp_path: Path) -> None:
    fuzz("fuzz_requests", request_seeds(), tmp_path, runs=40_000, max_s=8)


def test_the_readers_of_answers_stand_any_bytes(tmp_path: Path) -> None:
    fuzz("fuzz_answers", answer_seeds(), tmp_path, runs=40_000, max_s=8)


@pytest.mark.soak
@pytest.mark.parametrize(("name", "seeds"), [("fuzz_requests", request_seeds()), ("fuzz_answers", answer_seeds())])
def test_the_readers_stand_any_bytes_for_long(name: str, seeds: list[bytes], tmp_path: Path) -> None:
    fuzz(name, seeds, tmp_path, runs=50_000_000, max_s=600)
