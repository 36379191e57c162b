"""What the data plane must know of a certified engine: how it counts prompts, and how much context it has.

The gateway counts with our own renderer and tokeniser. Whether those count as this engine does is not assumed: sample
conversations are counted by both, and only kinds of requests that came out equal are counted later. The samples decide the
form in which the template gets a message's parts, too.
"""

from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from inference.engines.client import EngineClient, EngineRefused
from inference.tokenising.bundle import ContentFormat, TokeniserBundle, digest_of, encode_bundle
from inference.tokenising.counter import PromptCounter, Uncountable

log = structlog.get_logger(__name__)
ASK_LIMIT_S = 30.0

_WORDS = "  A line.\nAnother\t one, with tabs; 12345 + 67890 = 80235?\n\n日本語の文章です。🙂 Grüße, naïve café — ok.  "
_USER = {"role": "user", "content": _WORDS}
_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Paris"}'}}
CHATS: tuple[dict[str, Any], ...] = (
    {"messages": [_USER]},
    {"messages": [_USER, {"role": "assistant", "content": "Well: \n yes. "}, {"role": "user", "content": "And?"}]},
    {"messages": [{"role": "system", "content": "Be brief."}, _USER]},
    {"messages": [_USER, {"role": "assistant", "content": "It is"}], "add_generation_prompt": False},
    {
        "messages": [_USER, {"role": "assistant", "content": "It is "}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
)
PARTS: tuple[dict[str, Any], ...] = (
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two. "}]}]},
)
TOOLS: tuple[dict[str, Any], ...] = (
    {"messages": [_USER], "tools": [_TOOL]},
    {
        "messages": [
            _USER,
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "content": "sunny", "tool_call_id": "call_1"},
        ],
        "tools": [_TOOL],
    },
)
PROMPTS: tuple[dict[str, Any], ...] = ({"prompt": _WORDS}, {"prompt": "Hello"}, {"prompt": "a" * 500})


@dataclass(frozen=True)
class ServingFacts:
    """`tokeniser` is a bundle's bytes, empty where prompts cannot be counted; `max_model_len` 0 where it is not told."""

    tokeniser: bytes
    max_model_len: int

    @property
    def digest(self) -> str:
        return digest_of(self.tokeniser) if self.tokeniser else ""


NO_FACTS = ServingFacts(tokeniser=b"", max_model_len=0)


@dataclass(frozen=True)
class OwnCounter:
    """Both None where a version's prompts cannot be counted outside its engine."""

    bundle: TokeniserBundle | None = None
    counter: PromptCounter | None = None


def own_counter(bundle: TokeniserBundle | None) -> OwnCounter:
    """Takes a while (PromptCounter)."""
    if bundle is None:
        return OwnCounter()
    try:
        return OwnCounter(bundle, PromptCounter(bundle))
    except Uncountable as error:
        log.warning("tokeniser_unreadable", reason=error.reason)
        return OwnCounter()


def serving_facts(engine: EngineClient, own: OwnCounter) -> ServingFacts:
    """Raises EngineFailed."""
    max_model_len = engine.max_model_len(timeout_s=ASK_LIMIT_S)
    checked = None if own.bundle is None or own.counter is None else _checked(engine, own.bundle, own.counter)
    return ServingFacts(encode_bundle(checked) if checked and checked.counts_anything else b"", max_model_len)


def _checked(engine: EngineClient, bundle: TokeniserBundle, counter: PromptCounter) -> TokeniserBundle | None:
    """With what it is shown to count."""
    try:
        engine_counts = {kind: [_asked(engine, sample) for sample in samples] for kind, samples in _SAMPLES.items()}
    except EngineRefused as refusal:
        log.warning("tokeniser_not_checked", reason=refusal.message)
        return None
    candidates = [_compared(bundle, counter, content_format, engine_counts) for content_format in _FORMATS]
    best = max(candidates, key=lambda found: (found.counts_chat, found.counts_parts, found.counts_tools))
    shown = {kind: getattr(best, kind) for kind in _SAMPLES}
    log.info("tokeniser_checked", content_format=best.content_format, **shown)
    return best


_FORMATS: tuple[ContentFormat, ...] = ("string", "openai")
_SAMPLES = {"counts_chat": CHATS, "counts_parts": PARTS, "counts_tools": TOOLS, "counts_prompts": PROMPTS}


def _compared(
    bundle: TokeniserBundle, counter: PromptCounter, content_format: ContentFormat, engine_counts: dict[str, list[int | None]]
) -> TokeniserBundle:
    counter = counter.speaking(content_format=content_format, **dict.fromkeys(_SAMPLES, True))
    shown = {
        kind: all(_ours(counter, sample) == count for sample, count in zip(samples, engine_counts[kind], strict=True))
        for kind, samples in _SAMPLES.items()
    }
    return msgspec.structs.replace(bundle, content_format=content_format, **shown)


def _ours(counter: PromptCounter, sample: dict[str, Any]) -> int | None:
    """None: refused."""
    try:
        return counter.chat(sample) if "messages" in sample else counter.prompts(sample)[0]
    except Uncountable:
        return None


def _asked(engine: EngineClient, sample: dict[str, Any]) -> int | None:
    """None: the engine refuses it (a template without a system, for example). Raises EngineRefused where it never answers."""
    try:
        return engine.num_tokens(sample, timeout_s=ASK_LIMIT_S)
    except EngineRefused as refusal:
        if refusal.data.get("status") == 400:
            return None
        raise
