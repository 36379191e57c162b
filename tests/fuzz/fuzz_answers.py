"""Atheris against the splitter of event streams and the reader of answers.

What must hold for any bytes: events do not depend on how the bytes are cut; the reader takes an event or raises one of its
two errors; whatever it hands on is strict JSON and carries the public name; usage fits the ledger.
"""

import sys

import atheris

with atheris.instrument_imports(include=["inference.gateway"]):
    from inference.gateway.answer import MAX_TOKENS, AnswerReader, BadEvent, EngineReported
    from inference.gateway.fold import Folder
    from inference.gateway.openai_errors import engine_refusal, error_status
    from inference.gateway.outputs import encode
    from inference.gateway.sse import SseSplitter


def split(data: bytes, *cuts: int) -> list[bytes]:
    splitter, events, start = SseSplitter(), [], 0
    for cut in (*sorted(cuts), len(data)):
        events += splitter.feed(data[start:cut])
        start = max(start, cut)
    return events + splitter.flush()


def one_input(data: bytes) -> None:
    provider = atheris.FuzzedDataProvider(data)
    wants_usage, num_choices = provider.ConsumeBool(), provider.ConsumeIntInRange(1, 3)
    cuts = [provider.ConsumeIntInRange(0, 400) for _ in range(3)]
    stream = provider.ConsumeBytes(provider.remaining_bytes())
    events = split(stream)
    assert split(stream, *(min(cut, len(stream)) for cut in cuts)) == events
    reader = AnswerReader(response_id="id", public_id="m", wants_usage=wants_usage, num_choices=num_choices)
    folder = Folder()
    try:
        for event in events:
            chunk = reader.take(event)
            if chunk is not None:
                assert chunk["model"] == "m"
                assert chunk["choices"]
                encode(chunk)
                folder.add(chunk)
        encode(folder.answer(reader.final_usage()))
        reader.take_whole(stream)
    except EngineReported as error:
        engine_refusal(error_status(error.error), error.error, upstream_model="inner", public_id="m").body()
    except BadEvent:
        pass
    usage = reader.usage()
    if usage is not None:
        assert 0 <= usage.prompt_tokens <= MAX_TOKENS
        assert usage.completion_tokens >= 0
    usage_chunk = reader.usage_chunk()
    assert usage_chunk is None or usage_chunk["choices"] == []


def main() -> None:
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
