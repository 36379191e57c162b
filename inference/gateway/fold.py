"""Fold the chunks of a stream into the one answer that a client gets who did not ask for a stream."""

from typing import Any

from inference.gateway.answer import BadEvent, Chunk

_PER_CHOICE = ("index", "delta", "text")
MAX_INDEX = 1023
"""The highest index of a choice or a tool call that is believed."""


class Folder:
    """Chunks in, a chat.completion or text_completion object out. Text pieces are joined, other values: the last wins."""

    def __init__(self) -> None:
        self._last: Chunk = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._is_chat = False

    def add(self, chunk: Chunk) -> None:
        """Raises BadEvent for what cannot be put together."""
        self._last = {**self._last, **chunk}
        for choice in chunk["choices"]:
            index = _index(choice.get("index"), 0)
            folded = self._choices.setdefault(index, {"index": index, "logprobs": None, "finish_reason": None})
            folded.update({name: value for name, value in choice.items() if name not in _PER_CHOICE and value is not None})
            if isinstance(choice.get("delta"), dict):
                self._is_chat = True
                _merge(folded.setdefault("message", {"role": "assistant", "content": None}), choice["delta"])
            elif isinstance(choice.get("text"), str):
                folded["text"] = folded.get("text", "") + choice["text"]

    def answer(self, usage: object) -> Chunk:
        answer = {name: value for name, value in self._last.items() if value is not None}
        answer["object"] = "chat.completion" if self._is_chat else "text_completion"
        answer["choices"] = [self._choices[index] for index in sorted(self._choices)]
        answer["usage"] = usage
        return answer


def _merge(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if name == "tool_calls" and value is not None:
            _merge_tool_calls(message.setdefault("tool_calls", []), value)
        elif isinstance(value, str) and name != "role":
            message[name] = _joined(message.get(name), value)
        elif value is not None:
            message[name] = value


def _merge_tool_calls(calls: list[dict[str, Any]], pieces: object) -> None:
    """Pieces name their call by `index`; name and arguments come in parts."""
    if not isinstance(pieces, list):
        raise BadEvent("tool calls are no list")
    for piece in pieces:
        function = (piece.get("function") or {}) if isinstance(piece, dict) else None
        if not isinstance(function, dict):
            raise BadEvent("a tool call is no object")
        index = _index(piece.get("index"), len(calls))
        while len(calls) <= index:
            calls.append({"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
        call = calls[index]
        for name in ("id", "type"):
            if piece.get(name):
                call[name] = piece[name]
        for name, value in function.items():
            if value is not None:
                call["function"][name] = _joined(call["function"].get(name), value) if isinstance(value, str) else value


def _index(given: object, default: int) -> int:
    index = default if given is None else given
    if type(index) is not int or not 0 <= index <= MAX_INDEX:
        raise BadEvent("an index that is none")
    return index


def _joined(before: object, text: str) -> str:
    return before + text if isinstance(before, str) else text
