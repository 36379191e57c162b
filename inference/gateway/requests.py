"""Read a generation request, as fields.py describes it, and write what one replica is sent.

`read_request` turns a body into a `GenerationRequest`; `upstream_body` turns that into a body for an engine: only values
that were checked, so that the engine reads what the gateway has read.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from inference.gateway.fields import CHAT, COMPLETIONS, UNFOLDABLE, USUAL_MAX_CHOICES, VLLM_ONLY
from inference.gateway.json_body import read_object
from inference.gateway.openai_errors import BadRequest

Tier = Literal["interactive", "standard", "batch"]
Api = Literal["chat", "completions"]
Route = Literal["/v1/generate", "/v1/chat/completions", "/v1/completions"]

# Never sent on as they came: ours, or set anew for each replica.
_SET_ANEW = ("model", "stream", "stream_options", "priority", "max_tokens", "max_completion_tokens", "safety_identifier")


@dataclass(frozen=True)
class GenerationRequest:
    route: str
    api: Api
    model: str
    tier: Tier
    is_streamed: bool
    wants_usage: bool
    wants_running_usage: bool
    num_choices: int
    max_tokens: int
    names_limit: bool
    """The client named a limit, so that it must not be made smaller."""
    is_foldable: bool
    prompt_tokens_bound: int
    """Exact where the prompt was counted."""
    likely_prompt_tokens: int | None
    """Where it was not: what it most likely has."""
    fields: dict[str, Any]
    """What the client sent, as it was checked: without nulls, ignored fields and what the gateway sets for each replica."""
    subject: str = ""
    """Whom the client serves, as it says; empty: it does not."""

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.api == "chat" else "/v1/completions"


def read_request(
    body: bytes, route: str, *, default_max_tokens: int, max_choices: int = USUAL_MAX_CHOICES
) -> GenerationRequest:
    """Raises BadRequest; its `param` names the field where one is at fault."""
    return build_request(read_object(body), route, len(body), default_max_tokens=default_max_tokens, max_choices=max_choices)


def build_request(
    sent: dict[str, Any],
    route: str,
    body_bytes: int,
    *,
    default_max_tokens: int,
    max_choices: int = USUAL_MAX_CHOICES,
    always_streams: bool = False,
) -> GenerationRequest:
    """The same from a decoded object; `always_streams` for a WebSocket."""
    api = _api_of(route, sent)
    given = (CHAT if api == "chat" else COMPLETIONS).take(sent, "")
    num_choices = _num_choices(given, max_choices)
    options = given.get("stream_options", {})
    limit_name, max_tokens = _limit(given, api, default_max_tokens)
    fields = {name: value for name, value in given.items() if name not in _SET_ANEW}
    return GenerationRequest(
        route=route,
        api=api,
        model=given["model"],
        tier=given.get("priority", "standard"),
        is_streamed=given.get("stream", False) or always_streams,
        wants_usage=bool(options.get("include_usage")),
        wants_running_usage=bool(options.get("include_usage") and options.get("continuous_usage_stats")),
        num_choices=num_choices,
        max_tokens=max_tokens,
        names_limit=given.get("max_tokens") is not None or given.get("max_completion_tokens") is not None,
        is_foldable=num_choices == 1 and not any(is_set(given.get(name)) for name in UNFOLDABLE & given.keys()),
        prompt_tokens_bound=body_bytes,
        likely_prompt_tokens=None,
        fields={**fields, limit_name: max_tokens},
        subject=given.get("safety_identifier") or given.get("user") or "",
    )


def _api_of(route: str, sent: dict[str, Any]) -> Api:
    if route == "/v1/chat/completions":
        return "chat"
    if route == "/v1/completions":
        return "completions"
    has_messages, has_prompt = sent.get("messages") is not None, sent.get("prompt") is not None
    if has_messages == has_prompt:
        raise BadRequest("Give either `messages` or `prompt`.", param="messages")
    return "chat" if has_messages else "completions"


def is_set(value: object) -> bool:
    """Zero is: `logprobs: 0` asks for the log-probability of each token."""
    return value is not None and value is not False and value != []


def _num_choices(given: dict[str, Any], limit: int) -> int:
    """Answers to be made: a list of token ids is one prompt; a list of texts or of id lists is several."""
    n, prompt = given.get("n", 1), given.get("prompt")
    num_prompts = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    if n * num_prompts > limit:
        raise BadRequest(f"Prompts times `n` may be at most {limit}, not {num_prompts} times {n}.", param="n")
    return int(n * num_prompts)


def _limit(given: dict[str, Any], api: Api, default: int) -> tuple[str, int]:
    """The smaller of both names, or the default, under one name, which the engine's API knows."""
    old, new = given.get("max_tokens"), given.get("max_completion_tokens")
    name = "max_completion_tokens" if api == "chat" and old is None and new is not None else "max_tokens"
    return name, min((limit for limit in (old, new) if limit is not None), default=default)


def shortened(request: GenerationRequest, max_tokens: int) -> GenerationRequest:
    """With a smaller limit than it has."""
    names = ("max_tokens", "max_completion_tokens")
    fields = {name: max_tokens if name in names else value for name, value in request.fields.items()}
    return replace(request, max_tokens=max_tokens, fields=fields)


def upstream_body(
    request: GenerationRequest,
    *,
    kind: str,
    upstream_model: str,
    cache_salt: str,
    engine_priority: int,
    asks_ids: bool = False,
) -> tuple[bytes, bool]:
    """The body for one replica, and whether it asks for a stream. `asks_ids`: each event is to tell its token ids to us.

    An engine that schedules first come, first served ignores the priority.
    """
    asks_stream = request.is_streamed or request.is_foldable
    body: dict[str, Any] = {"model": upstream_model, **request.fields}
    if kind != "vllm":
        for name in VLLM_ONLY[request.api] & body.keys():
            del body[name]
    if asks_stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
        if kind == "vllm":
            body["stream_options"]["continuous_usage_stats"] = True
    if kind == "vllm":
        body["cache_salt"] = cache_salt
        body["priority"] = engine_priority
    if asks_ids:
        body["return_token_ids"] = True
    return msgspec.json.encode(body), asks_stream
