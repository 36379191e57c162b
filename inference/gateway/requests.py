"""Read a generation request: typed where it must be understood, passed through where it need not be.

`read_request` turns a body into a `GenerationRequest`; `upstream_body` turns that into what one replica is sent.
An optional field that is null counts as absent. What a client must not set is in INTERNAL_FIELDS.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from inference.gateway.openai_errors import BadRequest

Tier = Literal["interactive", "standard", "batch"]
Api = Literal["chat", "completions"]
Route = Literal["/v1/generate", "/v1/chat/completions", "/v1/completions"]
MAX_CHOICES = 128


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Ours to set, or unsafe in a client's hands (templates are programs, embeddings are pickled tensors).
INTERNAL_FIELDS = _names("""
    cache_salt kv_transfer_params ec_transfer_params request_id session_id vllm_xargs mm_payload return_mm_kwargs
    media_io_kwargs mm_processor_kwargs chat_template prompt_embeds logits_processors
    routed_experts_prompt_start data_parallel_rank use_beam_search
""")

# Fields only vLLM knows: not sent to engines of kind "openai".
VLLM_ONLY_FIELDS = _names("""
    top_k min_p repetition_penalty length_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens
    skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens truncation_side prompt_logprobs
    logprob_token_ids allowed_token_ids bad_words add_generation_prompt continue_final_message add_special_tokens
    documents chat_template_kwargs structured_outputs guided_json guided_regex guided_choice guided_grammar
    return_tokens_as_token_ids return_token_ids return_token_offsets return_prompt_text thinking_token_budget
    include_reasoning watermarking repetition_detection stream_interval
""")

# With one of these set, an answer that is not streamed takes the engine's own way: folding a stream would lose something.
UNFOLDABLE_FIELDS = _names("""
    tools functions logprobs top_logprobs echo prompt_logprobs best_of return_token_ids return_prompt_text
    return_token_offsets
""")


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[Any] | None = None


_Tokens = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
_Prompt = str | list[int | str | list[int]]


class _Fields(msgspec.Struct):
    """The fields the gateway must understand, of all routes."""

    model: Annotated[str, msgspec.Meta(min_length=1)]
    stream: bool = False
    stream_options: _StreamOptions | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] = 1
    max_tokens: _Tokens | None = None
    max_completion_tokens: _Tokens | None = None
    priority: Tier = "standard"
    messages: Annotated[list[_Message], msgspec.Meta(min_length=1)] | None = None
    prompt: _Prompt | None = None
    tools: list[dict[str, Any]] | None = None
    user: str | None = None


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
    is_foldable: bool
    prompt_tokens_bound: int
    fields: dict[str, Any]
    """What the client sent, without nulls and without what the gateway sets anew for each replica."""

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.api == "chat" else "/v1/completions"


def read_request(body: bytes, route: str, *, default_max_tokens: int, always_streams: bool = False) -> GenerationRequest:
    """Raises BadRequest; its `param` names the field where one is at fault."""
    return build_request(
        read_object(body), route, len(body), default_max_tokens=default_max_tokens, always_streams=always_streams
    )


def read_object(body: bytes) -> dict[str, Any]:
    """A JSON object. Raises BadRequest."""
    if not body.strip():
        raise BadRequest("The request has no body; send a JSON object.")
    try:
        decoded = msgspec.json.decode(body)
    except RecursionError:
        raise BadRequest("The body is nested too deeply.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"The body is not valid JSON: {error}") from None
    if not isinstance(decoded, dict):
        raise BadRequest("The body must be a JSON object.")
    return decoded


def build_request(
    sent: dict[str, Any], route: str, body_bytes: int, *, default_max_tokens: int, always_streams: bool = False
) -> GenerationRequest:
    """The same from a decoded object; `always_streams` for a WebSocket."""
    given = {name: value for name, value in sent.items() if value is not None}
    for name in given.keys() & INTERNAL_FIELDS:
        raise BadRequest(f"`{name}` is set by the service and cannot be given; leave it out.", param=name)
    fields = _typed(given)
    api = _api_of(route, fields)
    num_prompts = _num_prompts(fields.prompt) if api == "completions" else 1
    options = fields.stream_options or _StreamOptions()
    is_foldable = fields.n * num_prompts == 1 and not any(_is_set(given.get(name)) for name in UNFOLDABLE_FIELDS)
    max_tokens = _limit(fields, given, api, default_max_tokens)
    for name in ("model", "stream", "stream_options", "priority"):
        given.pop(name, None)
    return GenerationRequest(
        route=route,
        api=api,
        model=fields.model,
        tier=fields.priority,
        is_streamed=fields.stream or always_streams,
        wants_usage=bool(options.include_usage),
        wants_running_usage=bool(options.include_usage and options.continuous_usage_stats),
        num_choices=fields.n * num_prompts,
        max_tokens=max_tokens,
        is_foldable=is_foldable,
        prompt_tokens_bound=body_bytes,
        fields=given,
    )


def _is_set(value: object) -> bool:
    """Zero is: `logprobs: 0` asks for the log-probability of each token."""
    return value is not None and value is not False and value != []


def _typed(given: dict[str, Any]) -> _Fields:
    if "priority" in given and given["priority"] not in ("interactive", "standard", "batch"):
        raise BadRequest('`priority` must be "interactive", "standard" or "batch".', param="priority")
    if "model" not in given:
        raise BadRequest("`model` is missing; GET /v1/models lists what there is.", param="model")
    try:
        return msgspec.convert(given, _Fields)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        param = where.rstrip("`") or None
        raise BadRequest(f"{param}: {what}." if param else f"{what}.", param=param) from None


def _api_of(route: str, fields: _Fields) -> Api:
    if route == "/v1/chat/completions":
        if fields.messages is None:
            raise BadRequest("`messages` is missing.", param="messages")
        return "chat"
    if route == "/v1/completions":
        if fields.prompt is None:
            raise BadRequest("`prompt` is missing.", param="prompt")
        return "completions"
    if (fields.messages is None) == (fields.prompt is None):
        raise BadRequest("Give either `messages` or `prompt`.", param="messages")
    return "chat" if fields.messages is not None else "completions"


def _num_prompts(prompt: _Prompt | None) -> int:
    """A list of token ids is one prompt; a list of texts or of id lists is several. Raises BadRequest."""
    if not isinstance(prompt, list):
        return 1
    kinds = {type(part) for part in prompt}
    if len(kinds) != 1:
        raise BadRequest("`prompt` must be a text, a list of texts, or a list (of lists) of token ids.", param="prompt")
    return 1 if kinds == {int} else len(prompt)


def _limit(fields: _Fields, given: dict[str, Any], api: Api, default: int) -> int:
    """The smaller of both names, or the default; written back under one name, which the engine's API knows."""
    limits = [limit for limit in (fields.max_tokens, fields.max_completion_tokens) if limit is not None]
    max_tokens = min(limits, default=default)
    only_new_name = api == "chat" and fields.max_tokens is None and fields.max_completion_tokens is not None
    given.pop("max_tokens", None)
    given.pop("max_completion_tokens", None)
    given["max_completion_tokens" if only_new_name else "max_tokens"] = max_tokens
    return max_tokens


def upstream_body(request: GenerationRequest, *, kind: str, upstream_model: str, cache_salt: str) -> tuple[bytes, bool]:
    """The body for one replica, and whether it asks for a stream."""
    asks_stream = request.is_streamed or request.is_foldable
    body: dict[str, Any] = {"model": upstream_model, **request.fields}
    if kind != "vllm":
        for name in VLLM_ONLY_FIELDS & body.keys():
            del body[name]
        if request.api == "chat":
            body.pop("echo", None)
    if asks_stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
        if kind == "vllm":
            body["stream_options"]["continuous_usage_stats"] = True
    if kind == "vllm":
        body["cache_salt"] = cache_salt
    return msgspec.json.encode(body), asks_stream
