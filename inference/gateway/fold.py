"""Fold the chunks of a stream into the one answer that a client gets who did not ask for a stream."""

from typing import Any

from inference.gateway.chunks import Chunk

_PER_CHOICE = ("index", "delta", "text")


class Folder:
    """Chunks in, a chat.completion or text_completion object out. Text pieces are joined, other values: the last wins."""

    def __init__(self) -> None:
        self._last: Chunk = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._is_chat = False

    def add(self, chunk: Chunk) -> None:
        self._last = {**self._last, **chunk}
        for choice in chunk["choices"]:
            index = choice.get("index") or 0
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
        answer["choices"] = [_finished(self._choices[index]) for index in sorted(self._choices)]
        answer["usage"] = usage
        return answer


def _finished(choice: dict[str, Any]) -> dict[str, Any]:
    """Tool calls were collected by index."""
    message = choice.get("message")
    if message and message.get("tool_calls"):
        calls = message["tool_calls"]
        choice = {**choice, "message": {**message, "tool_calls": [calls[index] for index in sorted(calls)]}}
    return choice


def _merge(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if name == "tool_calls" and isinstance(value, list):
            _merge_tool_calls(message.setdefault("tool_calls", {}), value)
        elif isinstance(value, str) and name != "role":
            message[name] = _joined(message.get(name), value)
        elif value is not None:
            message[name] = value


def _joined(before: object, piece: str) -> str:
    return before + piece if isinstance(before, str) else piece


def _merge_tool_calls(calls: dict[int, dict[str, Any]], pieces: list[dict[str, Any]]) -> None:
    """Pieces name their call by `index`; name and arguments come in parts."""
    for piece in pieces:
        index: int = piece.get("index", len(calls))
        call = calls.setdefault(index, {"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
        for name in ("id", "type"):
            if piece.get(name):
                call[name] = piece[name]
        for name, value in (piece.get("function") or {}).items():
            if value is not None:
                function = call["function"]
                function[name] = _joined(function.get(name), value) if isinstance(value, str) else value
