"""Talks to one engine for the node agent: probes, scrapes, golden prompts. Blocking, for use in a thread.

Every failure is an EngineFailed whose message names what happened in words an operator understands, and never holds
text of a prompt or an answer.
"""

import contextlib
import http.client
import json
import math
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from inference.engines.vllm import EngineLoad, parse_metrics
from inference.errors import EngineFailed

PROBE_PROMPT = "Hello"
TEMPLATE_TOKENS = 1024
"""What a chat template may add of its own, at most."""
# Other refusals come before anything is computed.
_AFTER_WORK = frozenset({400, 500})


class EngineRefused(EngineFailed):
    """Fix the version or its prompts; the engine answered, with an error."""

    code = "engine_refused"


@dataclass(frozen=True)
class ForcedAnswer:
    """A prompt's log-probabilities (nats, one a position from the second token on) and the greedy answer to it."""

    logprobs: list[float]
    text: str


class EngineAbsent(EngineFailed):
    """Retry: nothing listens there yet, so nothing was asked."""


@dataclass(frozen=True)
class Spent:
    prompt_tokens: int
    completion_tokens: int


class Tally(Protocol):
    """Keeps what our own requests take (inference/node/own_work.py)."""

    def request(self, most: Spent) -> contextlib.AbstractContextManager[list[Spent]]: ...


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket. (httpx leaves the socket open when nothing listens there.)"""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("engine", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class EngineClient:
    """`url` is unix:/path or http://host:port; `model` the name it serves. A connection a request."""

    def __init__(self, url: str, model: str) -> None:
        self.url, self.model = url, model
        self.tally: Tally | None = None

    def one_token(self, *, timeout_s: float) -> None:
        """A real inference. Raises EngineFailed unless one token came back."""
        body = self._generate("/v1/completions", {"prompt": PROBE_PROMPT, "max_tokens": 1, "temperature": 0}, timeout_s)
        try:
            produced = body["usage"]["completion_tokens"]
        except (KeyError, TypeError):
            raise EngineFailed("the answer to a one-token request has no usage") from None
        if produced != 1:
            raise EngineFailed(f"a one-token request was answered with {produced} tokens")

    def warm_logprobs(self, *, timeout_s: float) -> None:
        """The first request with logprobs may compile for seconds; better now than under traffic."""
        ask = {"prompt": PROBE_PROMPT, "max_tokens": 1, "temperature": 0, "logprobs": 1}
        self._generate("/v1/completions", ask, timeout_s)

    def max_model_len(self, *, timeout_s: float) -> int:
        """Tokens of context; 0 where the engine does not say."""
        try:
            listed = json.loads(self._send("GET", "/v1/models", None, timeout_s))["data"]
            return max((int(entry.get("max_model_len") or 0) for entry in listed), default=0)
        except (ValueError, KeyError, TypeError, AttributeError):
            return 0

    def num_tokens(self, sample: dict[str, Any], *, timeout_s: float) -> int:
        """Of a prompt or a chat, as the engine would read it."""
        try:
            return int(self._post("/tokenize", sample, timeout_s)["count"])
        except (KeyError, TypeError, ValueError):
            raise EngineFailed("the answer of /tokenize has no count") from None

    def load(self, *, timeout_s: float) -> EngineLoad:
        return parse_metrics(self._send("GET", "/metrics", None, timeout_s).decode())

    def sleep(self, *, timeout_s: float) -> None:
        """Keep the weights in the machine's memory and forget the KV cache; nothing is answered until `wake_up`."""
        self._send("POST", "/sleep?level=1", None, timeout_s)

    def wake_up(self, *, timeout_s: float) -> None:
        self._send("POST", "/wake_up", None, timeout_s)

    def force(self, golden: dict[str, Any], *, timeout_s: float) -> ForcedAnswer:
        """Teacher-forced log-probabilities of the prompt, and the greedy answer, in one request.

        `{"prompt": text}` goes to /v1/completions; `{"messages": [...]}` to /v1/chat/completions, so that the engine's
        own chat template is part of what is compared. Both take `prompt_logprobs: 0`: the actual token's and no others.
        """
        ask = {"max_tokens": int(golden.get("max_tokens") or 1), "temperature": 0, "prompt_logprobs": 0}
        if golden.get("messages"):
            body = self._generate("/v1/chat/completions", {"messages": golden["messages"], **ask}, timeout_s)
            choice, source = body["choices"][0], body
            text = choice["message"]["content"] or ""
        else:
            body = self._generate("/v1/completions", {"prompt": golden["prompt"], **ask}, timeout_s)
            choice = source = body["choices"][0]
            text = choice["text"]
        return ForcedAnswer(logprobs=[_only_value(position) for position in source["prompt_logprobs"] if position], text=text)

    def _generate(self, path: str, body: dict[str, Any], timeout_s: float) -> Any:
        """A request that makes tokens: they are counted as ours."""
        if self.tally is None:
            return self._post(path, body, timeout_s)
        most = Spent(len(json.dumps(body, ensure_ascii=False).encode()) + TEMPLATE_TOKENS, body["max_tokens"])
        with self.tally.request(most) as told:
            try:
                answer = self._post(path, body, timeout_s)
            except EngineAbsent:
                told.append(Spent(0, 0))
                raise
            except EngineRefused as refusal:
                if refusal.data.get("status") not in _AFTER_WORK:
                    told.append(Spent(0, 0))
                raise
            told += _spent(answer)
            return answer

    def _post(self, path: str, body: dict[str, Any], timeout_s: float) -> Any:
        answer = self._send("POST", path, {"model": self.model, **body}, timeout_s)
        try:
            return json.loads(answer)
        except json.JSONDecodeError:
            raise EngineFailed(f"the answer of {path} is not JSON") from None

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self.url.startswith("unix:"):
            return UnixConnection(self.url.removeprefix("unix:"), timeout_s)
        return http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=timeout_s)

    def _send(self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float) -> bytes:
        with contextlib.closing(self._connection(timeout_s)) as connection:
            try:
                connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
                response = connection.getresponse()
                answer = response.read()
            except (ConnectionRefusedError, FileNotFoundError):
                raise EngineAbsent("it does not listen yet") from None
            except TimeoutError:
                raise EngineFailed(f"no answer of {path} within {timeout_s:g} s") from None
            except (OSError, http.client.HTTPException) as error:
                raise EngineFailed(f"{path}: the connection broke ({type(error).__name__})") from None
        if response.status != 200:
            raise EngineRefused(f"{path} answered with HTTP {response.status}", status=response.status)
        return answer


def _spent(answer: Any) -> Iterator[Spent]:
    """What an answer says it took; nothing where it does not say."""
    with contextlib.suppress(KeyError, TypeError, ValueError):
        usage = answer["usage"]
        yield Spent(int(usage["prompt_tokens"]), int(usage["completion_tokens"]))


def _only_value(position: dict[str, Any]) -> float:
    (entry,) = position.values()
    value = entry["logprob"]
    return float(value) if isinstance(value, int | float) else math.nan
