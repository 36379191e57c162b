"""What an engine's events are: decoded, and checked to be as the API has them. No state.

Raises BadEvent for what is no chunk; an error object in a chunk's place is `reported_error`'s to find.
"""

import json
from typing import Any

import msgspec

Chunk = dict[str, Any]
Piece = Chunk | bytes
"""Of an answer on its way to the client: a chunk, or chunks as they are shown already (event_template.py)."""
MAX_TOOL_CALLS = 1024


class BadEvent(Exception):
    """The engine sent an event that is not a JSON object of the API."""


class EngineReported(Exception):
    """The engine sent an error object inside its answer."""

    def __init__(self, error: object) -> None:
        super().__init__("the engine reported an error")
        self.error = error


def decode_object(data: bytes) -> Chunk:
    """One JSON object; NaN and infinities, which engines write in log-probabilities, become null. Raises BadEvent."""
    try:
        decoded = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        decoded = _decode_leniently(data)
    if not isinstance(decoded, dict):
        raise BadEvent("not a JSON object")
    return decoded


def _decode_leniently(data: bytes) -> object:
    """Halves of surrogate pairs become U+FFFD."""
    try:
        written = json.dumps(json.loads(data), ensure_ascii=False)
        whole = written.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return json.loads(whole, parse_constant=lambda _name: None)
    except (ValueError, RecursionError):
        raise BadEvent("not JSON") from None


def reported_error(answer: Chunk) -> object:
    """The error object in an answer, or None."""
    error = answer.get("error")
    if error:
        return error
    return answer if answer.get("object") == "error" else None


def carries_output(choice: dict[str, Any]) -> bool:
    """Does this choice of a chunk bring anything that the model made (text, a tool call), or its end?"""
    if choice.get("text") or choice.get("finish_reason"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role")


def check_choice(choice: object, num_choices: int) -> dict[str, Any]:
    """A choice of a chunk or of a whole answer, as it must be for all that is done with it here. Raises BadEvent."""
    if not isinstance(choice, dict):
        raise BadEvent("a choice is not an object")
    _check_index(choice, num_choices, "a choice")
    _check_texts(choice, ("text", "finish_reason"), "a choice")
    for name in ("delta", "message"):
        made = choice.get(name)
        if made is None:
            continue
        if not isinstance(made, dict):
            raise BadEvent(f"a {name} is not an object")
        _check_texts(made, ("role", "content", "reasoning", "reasoning_content", "refusal"), f"a {name}")
        if made.get("tool_calls") is not None:
            _check_tool_calls(made["tool_calls"])
    return choice


def _check_tool_calls(calls: object) -> None:
    if not isinstance(calls, list) or len(calls) > MAX_TOOL_CALLS:
        raise BadEvent("tool calls are not a list, or too many")
    for call in calls:
        if not isinstance(call, dict):
            raise BadEvent("a tool call is not an object")
        _check_index(call, MAX_TOOL_CALLS, "a tool call")
        _check_texts(call, ("id", "type"), "a tool call")
        function = call.get("function")
        if function is not None:
            if not isinstance(function, dict):
                raise BadEvent("a tool call's function is not an object")
            _check_texts(function, ("name", "arguments"), "a tool call's function")


def _check_index(holder: Chunk, limit: int, what: str) -> None:
    """It may be missing."""
    index = holder.get("index", 0)
    if type(index) is not int or not 0 <= index < limit:
        raise BadEvent(f"the index of {what} is not one of {limit}")


def _check_texts(holder: Chunk, names: tuple[str, ...], what: str) -> None:
    for name in names:
        value = holder.get(name)
        if value is not None and type(value) is not str:
            raise BadEvent(f"{name} of {what} is not a text")


def has_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    return bool(choice.get("text") or (isinstance(delta, dict) and delta.get("content")))


def hide_ids(chunk: Chunk, choice: dict[str, Any]) -> object:
    """Take token ids out of a chunk whose client did not ask for them; returns the prompt's, if it has them."""
    prompt_ids = None
    for holder in (chunk, choice):
        prompt_ids = prompt_ids or holder.get("prompt_token_ids")
        for name in ("token_ids", "prompt_token_ids"):
            if name in holder:
                holder[name] = None
    return prompt_ids


def ended_by(choice: dict[str, Any]) -> str:
    """The stop string that has ended it, if one has."""
    reason = choice.get("stop_reason")
    return reason if isinstance(reason, str) else ""
