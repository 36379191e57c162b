"""Ask the gateway a case, as any client would: one request over HTTP, at batch tier. No database."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

REQUEST_TIMEOUT_S = 120.0
CONNECT_TIMEOUT_S = 5.0
MAX_TRIES = 3
"""Of a case whose engine fails; then that is what the case came to."""
SETTLE_S = 15.0
"""How long a gateway may take to know a new key, and a version that was just put on trial."""
MAX_WAIT_S = 10.0
MAX_TEXT_CHARS = 200_000
VERSION_HEADER = "x-headway-version"
_ENGINE_FAILED = frozenset({500, 502, 504})
_BUSY = frozenset({408, 409, 425, 429, 503})


class GatewayAway(Exception):
    """Retry later: no gateway takes the request now. The text says what it said."""


class WrongVersion(Exception):
    """The run cannot go on: another version answers, or the one it is about may not be asked for."""


@dataclass(frozen=True)
class Answer:
    text: str = ""
    finish_reason: str = ""
    error: str = ""
    """Why there is none."""
    request_id: str = ""
    latency_ms: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class Asker:
    """Of one part of one run. `ask` may be called by several threads at once."""

    def __init__(
        self,
        *,
        base_url: str,
        api_key: str,
        model: str,
        version: str,
        is_stable: bool,
        until_s: float,
        transport: httpx.BaseTransport | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`until_s` (monotonic): after it nothing is tried again. `is_stable`: it is what answers without being named."""
        headers = {"authorization": f"Bearer {api_key}"} | ({VERSION_HEADER: version} if version else {})
        timeout = httpx.Timeout(REQUEST_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        self._client = httpx.Client(base_url=base_url, headers=headers, timeout=timeout, transport=transport, trust_env=False)
        self._model, self._version, self._is_stable = model, version, is_stable
        self._until_s, self._monotonic_s, self._sleep = until_s, monotonic_s, sleep
        self._settled_at_s = monotonic_s() + SETTLE_S

    def close(self) -> None:
        self._client.close()

    def ask(self, content: dict[str, Any]) -> Answer:
        """A case as it is stored (inference/evals/cases.py). Raises GatewayAway, WrongVersion."""
        tries = 0
        while True:
            begun_s = self._monotonic_s()
            response = self._send(content)
            took_ms = round((self._monotonic_s() - begun_s) * 1000)
            if response.status_code == httpx.codes.OK:
                self._check_version(response)
                return _answer(response, took_ms)
            is_ours = bool(_error(response))
            if self._may_settle(response):
                self._wait(response, 0.25)
            elif response.status_code in _BUSY or (response.status_code in _ENGINE_FAILED and not is_ours):
                self._wait(response, 1.0)
            elif not is_ours:
                raise GatewayAway(f"HTTP {response.status_code}, and not from a gateway: see HEADWAY_EVAL_API_URL")
            elif response.status_code in _ENGINE_FAILED and (tries := tries + 1) < MAX_TRIES:
                self._wait(response, 0.5)
            elif response.status_code in (401, 403):
                raise GatewayAway(_told(response))
            else:
                return Answer(error=_told(response), request_id=_request_id(response), latency_ms=took_ms)

    def _send(self, content: dict[str, Any]) -> httpx.Response:
        body = {
            "model": self._model,
            "messages": content["messages"],
            "max_tokens": content["max_tokens"],
            "temperature": 0,
            **content.get("sampling", {}),
            "priority": "batch",
        }
        try:
            return self._client.post("/v1/chat/completions", json=body)
        except httpx.TimeoutException:
            raise GatewayAway(f"no answer within {REQUEST_TIMEOUT_S:g} s") from None
        except httpx.HTTPError as error:
            raise GatewayAway(f"the gateway does not answer ({type(error).__name__})") from None

    def _may_settle(self, response: httpx.Response) -> bool:
        """Gateways hear of a key, and of a rollout, within a second; each of several by itself."""
        is_new = response.status_code == 401 or _code(response) == "version_not_allowed"
        if is_new and self._monotonic_s() < self._settled_at_s:
            return True
        if _code(response) == "version_not_allowed":
            raise WrongVersion(_told(response))
        return False

    def _wait(self, response: httpx.Response, least_s: float) -> None:
        """Raises GatewayAway where the time of this part is over."""
        try:
            wait_s = min(MAX_WAIT_S, max(least_s, float(response.headers.get("retry-after", 0))))
        except ValueError:
            wait_s = least_s
        if self._monotonic_s() + wait_s > self._until_s:
            raise GatewayAway(_told(response))
        self._sleep(wait_s)

    def _check_version(self, response: httpx.Response) -> None:
        served = response.headers.get(VERSION_HEADER, "")
        if self._version and served and served != self._version:
            raise WrongVersion(f"the gateway answered by {served[:20]}, and not by {self._version}")
        if self._version and not served and not self._is_stable:
            raise WrongVersion(f"the gateway does not say that {self._version} answered")


def _answer(response: httpx.Response, took_ms: int) -> Answer:
    """One that is not what a chat answers with is an error of the case."""
    try:
        body = response.json()
        choice, usage = body["choices"][0], body["usage"]
        text = choice["message"].get("content") or ""
        details = usage.get("prompt_tokens_details") or {}
        return Answer(
            text=_clean(text)[:MAX_TEXT_CHARS],
            finish_reason=str(choice.get("finish_reason") or "")[:32],
            request_id=_request_id(response),
            latency_ms=took_ms,
            prompt_tokens=int(usage["prompt_tokens"]),
            cached_tokens=int(details.get("cached_tokens") or 0),
            completion_tokens=int(usage["completion_tokens"]),
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return Answer(error="the answer is not a chat completion", request_id=_request_id(response), latency_ms=took_ms)


def _clean(text: str) -> str:
    """Without what no database keeps: null characters, halves of surrogate pairs."""
    return text.replace("\0", "").encode(errors="replace").decode()


def _request_id(response: httpx.Response) -> str:
    return str(response.headers.get("x-request-id", ""))[:64]


def _error(response: httpx.Response) -> dict[str, Any]:
    """Every refusal of a gateway has one; a proxy whose gateway is away answers with a page of its own."""
    try:
        error = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}


def _code(response: httpx.Response) -> str:
    return str(_error(response).get("code") or "")


def _told(response: httpx.Response) -> str:
    message = _clean(str(_error(response).get("message") or ""))
    return f"{response.status_code}: {message}"[:300]
