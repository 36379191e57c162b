"""Render chat templates as transformers 5 does (`render_jinja_template`), on messages as vLLM 0.32 hands them over.

Sources: transformers/utils/chat_template_utils.py; vllm/renderers/hf.py and chat_utils.py (text only).
"""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inference.tokenising.bundle import ContentFormat

Message = dict[str, Any]
_CONTINUED = "CONTINUE_FINAL_MESSAGE_TAG "


class TemplateRefused(Exception):
    """Leave it to the engine; the template does not take this conversation. Holds no text of it."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what an assistant said; for rendering it is as if it were not there."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

    def _said(self, caller: Callable[[], str]) -> str:
        return caller()


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # local time, as the engine's


def _environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = _strftime_now
    return made


class ChatTemplate:
    """One compiled template; `render` may be called from several threads at once."""

    def __init__(self, source: str) -> None:
        """Raises TemplateRefused."""
        self._source = source
        self._knows_developer = '"developer"' in source or "'developer'" in source
        try:
            self._compiled = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateRefused(f"it cannot be compiled ({type(error).__name__})") from None

    def render(self, messages: list[Message], variables: dict[str, Any]) -> str:
        """`messages` from `conversation_of`. Raises TemplateRefused, of which only the kind of error is told."""
        given = dict(variables)
        is_continued = bool(given.pop("continue_final_message", False))
        if is_continued and given.get("add_generation_prompt"):
            raise TemplateRefused("add_generation_prompt and continue_final_message exclude each other")
        if not self._knows_developer and any(message["role"] == "developer" for message in messages):
            messages = _without_developer(messages)
        try:
            if is_continued:
                return self._continued(messages, given)
            return self._compiled.render(messages=messages, **_named(given))
        except TemplateRefused:
            raise
        except Exception as error:  # noqa: BLE001  a template is a program of the model's: anything can come of it
            raise TemplateRefused(type(error).__name__) from None

    def _continued(self, messages: list[Message], given: dict[str, Any]) -> str:
        """Up to the end of the last message's text, which the model goes on with."""
        if "content" not in self._source:
            raise TemplateRefused("there is nothing to continue")
        *before, last = messages
        text, marked = _marked(last.get("content"))
        rendered = self._compiled.render(messages=[*before, {**last, "content": marked}], **_named(given))
        if text.strip() not in rendered or _CONTINUED.strip() not in rendered:
            raise TemplateRefused("the last message does not appear")
        end = rendered.rindex(_CONTINUED.strip())
        keeps_spaces = rendered[end : end + len(_CONTINUED)] == _CONTINUED
        return rendered[:end] if keeps_spaces else rendered[:end].rstrip()


def _named(given: dict[str, Any]) -> dict[str, Any]:
    return {"tools": None, "documents": None, "add_generation_prompt": False, **given}


def _marked(content: Any) -> tuple[str, Any]:
    """The text that is continued, and the content with a mark at its end."""
    if isinstance(content, str):
        return content, content + _CONTINUED
    for number in range(len(content or []) - 1, -1, -1):
        if "text" in content[number]:
            text = content[number]["text"]
            return text, [*content[:number], {**content[number], "text": text + _CONTINUED}, *content[number + 1 :]]
    raise TemplateRefused("there is nothing to continue")


def conversation_of(messages: list[Message], content_format: ContentFormat) -> list[Message]:
    """Messages of the API as the template sees them. Raises TemplateRefused for parts that are not text."""
    return [_message(message, content_format) for message in messages]


def _message(message: Message, content_format: ContentFormat) -> Message:
    role = message["role"]
    texts = _texts(message.get("content"), is_system=role == "system")
    seen: Message = {"role": role}
    if content_format == "openai" and role != "tool":
        seen["content"] = [{"type": "text", "text": text} for text in texts]
    else:
        seen["content"] = "\n".join(texts)
    if role == "assistant":
        reasoning = message.get("reasoning")
        reasoning = message.get("reasoning_content") if reasoning is None else reasoning
        if reasoning is not None:
            seen["reasoning"] = seen["reasoning_content"] = reasoning
        if message.get("tool_calls"):
            seen["tool_calls"] = [_tool_call(call) for call in message["tool_calls"]]
    elif role == "tool" and "tool_call_id" in message:
        seen["tool_call_id"] = message["tool_call_id"]
    if isinstance(message.get("name"), str):
        seen["name"] = message["name"]
    if role == "developer":
        seen["tools"] = None
    return seen


_BILLING_HEADER = "x-anthropic-billing-header"


def _texts(content: Any, *, is_system: bool) -> list[str]:
    parts = [] if content is None else [content] if isinstance(content, str) else content
    texts = []
    for part in parts:
        text = part if isinstance(part, str) else part.get("text") if part.get("type") == "text" else part.get("refusal")
        if not isinstance(text, str):
            raise TemplateRefused("a part that is no text")
        if is_system and text.startswith(_BILLING_HEADER):  # the engine drops that line
            text = text.partition("\n")[2]
            if not text:
                continue
        texts.append(text)
    return texts


def _tool_call(call: dict[str, Any]) -> dict[str, Any]:
    """With its arguments as an object; what is none counts as an empty one."""
    try:
        arguments = json.loads(call["function"].get("arguments") or "{}")
    except json.JSONDecodeError:
        arguments = {}
    return {**call, "function": {**call["function"], "arguments": arguments if isinstance(arguments, dict) else {}}}


def _without_developer(messages: list[Message]) -> list[Message]:
    """For a template that does not know the role: developers are systems, and all systems one at the beginning."""
    messages = [
        {**{name: value for name, value in message.items() if name != "tools"}, "role": "system"}
        if message["role"] == "developer"
        else message
        for message in messages
    ]
    places = [number for number, message in enumerate(messages) if message["role"] == "system"]
    if places == [0]:
        return messages
    said = [_joined(messages[number]["content"]) for number in places]
    rest = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(text for text in said if text)}, *rest]


def _joined(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
