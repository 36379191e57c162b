"""Atheris against the splitter of event streams and the reader of answers.

What must hold for any bytes: events do not depend on how the bytes are cut; the reader takes an event or raises one of its
two errors; whatever it hands on is strict JSON and carries the public name; usage fits the ledger.
"""

import json
import sys
from typing import Any

import atheris

with atheris.instrument_imports(include=["inference.gateway"]):
    from inference.gateway.answer import AnswerReader
    from inference.gateway.chunks import BadEvent, EngineReported
    from inference.gateway.engine_usage import MAX_TOKENS
    from inference.gateway.fold import Folder
    from inference.gateway.openai_errors import engine_refusal, error_status
    from inference.gateway.outputs import encode
    from inference.gateway.sse import SseSplitter

from tests.fuzz.values import grown


def split(data: bytes, *cuts: int) -> list[bytes]:
    splitter, events, start = SseSplitter(), [], 0
    for cut in (*sorted(cuts), len(data)):
        events += splitter.feed(data[start:cut])
        start = max(start, cut)
    return events + splitter.flush()


NAMES = [
    "choices",
    "index",
    "delta",
    "text",
    "content",
    "role",
    "tool_calls",
    "function",
    "name",
    "arguments",
    "usage",
    "prompt_tokens",
    "completion_tokens",
    "prompt_tokens_details",
    "cached_tokens",
    "finish_reason",
    "error",
    "message",
    "code",
    "object",
    "id",
    "type",
]


def grown_stream(provider: Any) -> bytes:
    events = []
    for _ in range(provider.ConsumeIntInRange(1, 3)):
        part = NAMES[provider.ConsumeIntInRange(2, 3)]
        content = {"tool_calls": [grown(provider, NAMES, 2)]} if provider.ConsumeBool() else grown(provider, NAMES, 2)
        choice = {"index": grown(provider, NAMES, 4), part: content, "finish_reason": grown(provider, NAMES, 3)}
        chunk = {"id": "x", "choices": [choice], "usage": grown(provider, NAMES, 2)}
        events.append(b"data: " + json.dumps(grown(provider, NAMES) if provider.ConsumeBool() else chunk).encode() + b"\n\n")
    return b"".join(events)


def one_input(data: bytes) -> None:
    provider = atheris.FuzzedDataProvider(data)
    wants_usage, num_choices = provider.ConsumeBool(), provider.ConsumeIntInRange(1, 3)
    cuts = [provider.ConsumeIntInRange(0, 400) for _ in range(3)]
    is_grown = provider.ConsumeBool()
    stream = grown_stream(provider) if is_grown else provider.ConsumeBytes(provider.remaining_bytes())
    events = split(stream)
    assert split(stream, *(min(cut, len(stream)) for cut in cuts)) == events
    reader = AnswerReader(response_id="id", public_id="m", wants_usage=wants_usage, num_choices=num_choices)
    try:
        read_all(reader, events)
        reader.take_whole(stream.removeprefix(b"data: "))
    except EngineReported as error:
        engine_refusal(error_status(error.error), error.error, upstream_model="inner", public_id="m").body()
    except BadEvent:
        pass
    usage = reader.usage()
    if usage is not None:
        assert 0 <= usage.prompt_tokens <= MAX_TOKENS
        assert 0 <= usage.completion_tokens <= 3 * MAX_TOKENS
    usage_chunk = reader.usage_chunk()
    assert usage_chunk is None or usage_chunk["choices"] == []


def read_all(reader: "AnswerReader", events: list[bytes]) -> None:
    folder = Folder()
    for event in events:
        chunk = reader.take(event)
        if chunk is not None:
            assert chunk["model"] == "m"
            assert chunk["choices"]
            encode(chunk)
            folder.add(chunk)
    assert len(encode(folder.answer(reader.final_usage()))) < 1_000_000


def main() -> None:
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
