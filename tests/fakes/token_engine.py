"""A stand-in engine that makes a given text token by token, as vLLM does: ids, held-back text, stop strings, resuming.

    engine = TokenEngine("Zug 🚆 nach Köln", token_bytes=2)
    ScriptedReplica(default=engine.answer)

Token `n` of the output has the id FIRST_ID + n and `token_bytes` bytes of the text, so that characters span tokens. A
prompt of ids that ends with the first `n` of them is gone on from there. `"user": "3 5"` in a body lets the connection be
reset after 3 tokens, that of the request that goes on from there after another 5, and so on (`dying`). `redraws`: the text
that is made by a request that goes on (as sampling would make another one), from its first token.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.replica import DONE, RESET, Script, SeenRequest, Step, answered, running_usage, sse, streamed

PROMPT_IDS = [11, 12, 13]
FIRST_ID = 1000
REDRAWN_ID = 5000
EOS_ID = 2


@dataclass
class TokenEngine:
    text: str
    token_bytes: int = 2
    tokens_an_event: int = 1
    redraws: str | None = None
    can_detokenise: bool = True
    tells_ids: bool = True
    ends_by: Step = RESET
    pause_s: float = 0.0
    asked: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, seen: SeenRequest) -> Script:
        if seen.method != "POST":
            return answered({"object": "list", "data": []})
        if seen.path == "/detokenize":
            return self._detokenised(seen.json["tokens"]) if self.can_detokenise else answered({"detail": "Not Found"}, 404)
        body = seen.json
        self.asked.append(body)
        is_chat = seen.path.endswith("/chat/completions")
        deaths = [int(number) for number in body.get("user", "").split()]
        attempt = int(seen.headers["x-request-id"].rsplit("-", 1)[1])
        dies_after = deaths[attempt - 1] if attempt <= len(deaths) else None
        steps: list[Step] = []
        num_tokens = 0
        for event, tokens in self._events(body, is_chat=is_chat):
            if dies_after is not None and num_tokens + tokens > dies_after:
                return streamed([*steps, 0.01], after=[self.ends_by])
            num_tokens += tokens
            steps.append(event)
            if self.pause_s:
                steps.append(self.pause_s)
        return streamed([*steps, DONE])

    def pieces(self) -> list[bytes]:
        return _split(self.text, self.token_bytes)

    def _bytes_of(self, token: int) -> bytes:
        if token >= REDRAWN_ID:
            return _split(self.redraws or "", self.token_bytes)[token - REDRAWN_ID]
        return self.pieces()[token - FIRST_ID] if token >= FIRST_ID else b"~"

    def _detokenised(self, tokens: list[int]) -> Script:
        return answered({"prompt": b"".join(map(self._bytes_of, tokens)).decode(errors="replace")})

    def _to_make(self, body: dict[str, Any]) -> list[int]:
        """The ids of what is still to be made."""
        prompt = body.get("prompt")
        begun = prompt[len(PROMPT_IDS) :] if isinstance(prompt, list) else []
        if begun and self.redraws is not None:
            return [REDRAWN_ID + number for number in range(len(_split(self.redraws, self.token_bytes)))]
        assert begun == [FIRST_ID + number for number in range(len(begun))], begun
        return [FIRST_ID + number for number in range(len(begun), len(self.pieces()))]

    def _events(self, body: dict[str, Any], *, is_chat: bool) -> Iterator[tuple[bytes, int]]:
        """Each with the number of its tokens."""
        prompt = body.get("prompt")
        prompt_ids = prompt if isinstance(prompt, list) else PROMPT_IDS
        tells = self.tells_ids and body.get("return_token_ids")
        shape = _Shape(is_chat=is_chat, num_prompt=len(prompt_ids), tells_ids=bool(tells))
        if is_chat:
            yield shape.role(prompt_ids), 0
        ids: list[int] = []
        text, made = "", 0
        for tokens, piece, finish, stop_reason in self._steps(body):
            made += 1
            text, ids = text + piece, [*ids, *tokens]
            if finish or len(ids) == self.tokens_an_event:
                yield shape.token(text, ids, made, finish, stop_reason, prompt_ids), len(ids)
                text, ids = "", []
        yield shape.usage(made), 0

    def _steps(self, body: dict[str, Any]) -> Iterator[tuple[list[int], str, str | None, str | None]]:
        """One a token: its id, the text told with it, finish reason, stop reason."""
        stop = body.get("stop", [])
        stops = [stop] if isinstance(stop, str) else stop
        includes = body.get("include_stop_str_in_output", False)
        held_back = max(map(len, stops)) - 1 if stops and not includes else 0
        max_tokens = body.get("max_tokens") or body.get("max_completion_tokens") or 16
        min_tokens = body.get("min_tokens", 0)
        whole, raw, told = "", b"", 0
        for number, token in enumerate([*self._to_make(body), EOS_ID], start=1):
            if token == EOS_ID:
                yield [token], whole[told:], "stop", None
                return
            before = len(whole)
            raw += self._bytes_of(token)
            decoded = raw.decode(errors="replace")
            whole = whole if decoded.endswith("\ufffd") else decoded
            found = _stop_in(whole, before, stops) if number > min_tokens else None
            if found is not None:
                at, stop_string = found
                end = at + len(stop_string) if includes else at
                yield [token], whole[told:end], "stop", stop_string
                return
            if number == max_tokens:
                yield [token], whole[told:], "length", None
                return
            end = max(told, len(whole) - held_back)
            yield [token], whole[told:end], None, None
            told = end


@dataclass(frozen=True)
class _Shape:
    is_chat: bool
    num_prompt: int
    tells_ids: bool

    def role(self, prompt_ids: list[int]) -> bytes:
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        told = {"prompt_token_ids": prompt_ids if self.tells_ids else None, "prompt_text": None}
        return self._chunk([choice], running_usage(0, self.num_prompt), **told)

    def token(
        self, text: str, ids: list[int], made: int, finish: str | None, stop_reason: str | None, prompt_ids: list[int]
    ) -> bytes:
        choice: dict[str, Any] = {"index": 0, **({"delta": {"content": text}} if self.is_chat else {"text": text})}
        choice |= {"logprobs": None, "finish_reason": finish}
        if finish or not self.is_chat:
            choice["stop_reason"] = stop_reason
        if not self.is_chat:
            choice["prompt_token_ids"] = prompt_ids if self.tells_ids and made == len(ids) else None
        choice["token_ids"] = ids if self.tells_ids else None
        return self._chunk([choice], running_usage(made, self.num_prompt))

    def usage(self, made: int) -> bytes:
        return self._chunk([], running_usage(made, self.num_prompt))

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, int], **more: Any) -> bytes:
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        head = {"id": "upstream", "object": kind, "created": 1700000000 + self.num_prompt, "model": "upstream-name"}
        return sse(json.dumps({**head, "choices": choices, **more, "usage": usage}, ensure_ascii=False, separators=(",", ":")))


def dying(*after_tokens: int) -> str:
    """For the field `user`."""
    return " ".join(map(str, after_tokens))


def _split(text: str, size: int) -> list[bytes]:
    data = text.encode()
    return [data[at : at + size] for at in range(0, len(data), size)]


def _stop_in(text: str, old: int, stops: list[str]) -> tuple[int, str] | None:
    """The stop string that ends first beyond `old` characters; of two that end there, the first in the list."""
    if len(text) == old:
        return None
    found = [(text.find(stop, max(0, old + 1 - len(stop))), stop) for stop in stops]
    ends = [(at + len(stop), at, stop) for at, stop in found if at >= 0]
    return min(ends, key=lambda end: end[0])[1:] if ends else None
