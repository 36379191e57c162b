"""Count a request's prompt tokens: exactly, or not at all.

vLLM 0.32: templates are rendered to text, which is tokenised with `add_special_tokens` (chat: off unless asked for, as
templates write their own; completions: on). Speed and memory: see bench/README.md.
"""

import copy
import os
from dataclasses import dataclass
from typing import Any

import msgspec
from tokenizers import Tokenizer

from inference.tokenising.bundle import TokeniserBundle
from inference.tokenising.chat_template import ChatTemplate, TemplateRefused, conversation_of
from inference.tokenising.segments import MIN_CHARS, Cutter, SegmentMemory, key_of

# `tokenizers` would start a thread pool of its own for batches of one; ours calls it from several threads.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Arguments of transformers' apply_chat_template: a client who names one changes more than the template's variables.
_NOT_VARIABLES = frozenset(
    {
        "conversation",
        "chat_template",
        "tokenize",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "tokenizer_kwargs",
        "self",
        "messages",
    }
)


class Uncountable(Exception):
    """Take a bound instead. `reason` is a word for a metric; no text of the request is in it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class PromptTooLong(Exception):
    """Refuse it: its text is longer than `max_tokens` tokens can hold. `at_least_tokens` is what it surely has."""

    def __init__(self, at_least_tokens: int) -> None:
        super().__init__(f"at least {at_least_tokens} tokens")
        self.at_least_tokens = at_least_tokens


@dataclass
class Recall:
    """What one request may recall: only what the same tenant counted with the same tokeniser."""

    memory: SegmentMemory
    salt: bytes
    num_made: int = 0
    """Pieces worth keeping that were not known."""

    def key(self, piece: str) -> bytes:
        return key_of(piece, salt=self.salt)


class PromptCounter:
    """One version's; thread-safe. `fields` are those of a request as the gateway checked them."""

    def __init__(self, bundle: TokeniserBundle) -> None:
        """Raises Uncountable("damaged"). Takes about 0.2 s and 35 MB for 50,000 tokens of vocabulary."""
        self.bundle = msgspec.structs.replace(bundle, tokenizer_json="")  # megabytes that are not needed any more
        try:
            self._tokeniser = Tokenizer.from_str(bundle.tokenizer_json)
        except Exception:  # noqa: BLE001  the library raises nothing narrower
            raise Uncountable("damaged") from None
        self._tokeniser.no_truncation()
        self._tokeniser.no_padding()
        self._template = _compiled(bundle.chat_template)
        self._tool_template = _compiled(bundle.tool_template)
        self._cutter = Cutter(bundle.tokenizer_json)

    def speaking(self, **changes: Any) -> "PromptCounter":
        """The same with another bundle's facts (not its tokeniser or templates), sharing what was read."""
        assert changes.keys().isdisjoint({"tokenizer_json", "chat_template", "tool_template"}), "those were read already"
        other = copy.copy(self)
        other.bundle = msgspec.structs.replace(self.bundle, **changes)
        return other

    def chat(self, fields: dict[str, Any], *, max_tokens: int | None = None, memory: Recall | None = None) -> int:
        """Raises Uncountable; PromptTooLong where `max_tokens` is given and the text cannot fit."""
        is_special = bool(fields.get("add_special_tokens"))
        return self._count(self.render(fields), is_special=is_special, max_tokens=max_tokens, memory=memory)

    def prompts(self, fields: dict[str, Any], *, max_tokens: int | None = None, memory: Recall | None = None) -> list[int]:
        """One count a prompt. Raises as `chat`."""
        if fields.get("suffix") is not None:
            raise Uncountable("unsupported")
        is_special = fields.get("add_special_tokens", True) is not False
        counts = []
        for prompt in prompts_of(fields["prompt"]):
            if isinstance(prompt, list):
                counts.append(len(prompt))
            elif not self.bundle.counts_prompts:
                raise Uncountable("unsupported")
            else:
                counts.append(self._count(prompt, is_special=is_special, max_tokens=max_tokens, memory=memory))
        return counts

    def render(self, fields: dict[str, Any]) -> str:
        """The text of a chat as the model reads it. Raises Uncountable."""
        tools = fields.get("tools") or None
        if tools and self.bundle.drops_unused_tools and fields.get("tool_choice") == "none":
            tools = None
        template = self._tool_template if tools and self._tool_template else self._template
        self._check_countable(fields, has_tools=tools is not None)
        if template is None:
            raise Uncountable("no_template")
        variables = self._variables(fields, tools)
        try:
            return template.render(conversation_of(fields["messages"], self.bundle.content_format), variables)
        except TemplateRefused:
            raise Uncountable("template") from None

    def _check_countable(self, fields: dict[str, Any], *, has_tools: bool) -> None:
        bundle, messages = self.bundle, fields["messages"]
        has_calls = has_tools or any(message["role"] == "tool" or message.get("tool_calls") for message in messages)
        has_parts = any(isinstance(message.get("content"), list) for message in messages)
        is_shown = bundle.counts_chat and (bundle.counts_tools or not has_calls) and (bundle.counts_parts or not has_parts)
        if not is_shown:
            raise Uncountable("unsupported")

    def _variables(self, fields: dict[str, Any], tools: list[dict[str, Any]] | None) -> dict[str, Any]:
        """As vLLM's build_chat_params and merge_kwargs: a null or "auto" does not override."""
        own = dict(fields.get("chat_template_kwargs") or {})
        if own.keys() & _NOT_VARIABLES:
            raise Uncountable("unsupported")
        effort = fields.get("reasoning_effort")
        if effort is not None and "enable_thinking" not in own:
            own["enable_thinking"] = effort != "none"
        set_by_field = {
            "add_generation_prompt": fields.get("add_generation_prompt", True),
            "continue_final_message": fields.get("continue_final_message", False),
            "documents": fields.get("documents"),
            "reasoning_effort": effort,
        }
        own |= {name: value for name, value in set_by_field.items() if value not in (None, "auto")}
        defaults = {**self.bundle.template_kwargs, **({"tools": [_tool(tool) for tool in tools]} if tools else {})}
        changes = {name: value for name, value in own.items() if value not in (None, "auto")}
        return {**self.bundle.special_tokens, **defaults, **changes}

    def _count(self, text: str, *, is_special: bool, max_tokens: int | None, memory: Recall | None) -> int:
        if max_tokens is not None and len(text) > max_tokens * self.bundle.max_chars_per_token:
            raise PromptTooLong(-(-len(text) // self.bundle.max_chars_per_token))
        if memory is None:
            return self._encoded([text], is_special=is_special)[0]
        added = self._tokeniser.num_special_tokens_to_add(False) if is_special else 0
        return added + self._count_by_pieces(text, memory)

    def _count_by_pieces(self, text: str, memory: Recall) -> int:
        pieces = self._cutter.cut(text)
        keys = [memory.key(piece) if len(piece) >= MIN_CHARS else b"" for piece in pieces]
        known = memory.memory.recall(keys)
        missing = [number for number, count in enumerate(known) if count is None]
        made = dict(zip(missing, self._encoded([pieces[number] for number in missing], is_special=False), strict=True))
        memory.memory.keep({keys[number]: count for number, count in made.items() if keys[number]})
        memory.num_made += sum(1 for number in missing if keys[number])
        return sum(made.values()) + sum(count for count in known if count is not None)

    def _encoded(self, texts: list[str], *, is_special: bool) -> list[int]:
        """Raises Uncountable. The library raises nothing narrower, and where it panics not even an Exception."""
        try:
            return [len(encoding) for encoding in self._tokeniser.encode_batch_fast(texts, add_special_tokens=is_special)]
        except Exception:  # noqa: BLE001
            raise Uncountable("error") from None
        except BaseException as error:
            if type(error).__name__ == "PanicException":
                raise Uncountable("error") from None
            raise


def prompts_of(prompt: Any) -> list[str | list[int]]:
    """A text, texts, a list of token ids, or lists of them: as a list of prompts."""
    if isinstance(prompt, str):
        return [prompt]
    return [prompt] if isinstance(prompt[0], int) else list(prompt)


def _compiled(source: str | None) -> ChatTemplate | None:
    if source is None:
        return None
    try:
        return ChatTemplate(source)
    except TemplateRefused:
        return None


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """As vLLM writes it anew: these names, in this order, `strict` only where it was given."""
    function = tool["function"]
    written = {name: function.get(name) for name in ("name", "description", "parameters")}
    if function.get("strict") is not None:
        written["strict"] = function["strict"]
    return {"type": "function", "function": written}
