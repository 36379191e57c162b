"""The one description of what /v1 takes: every field, its shape and bounds, and what becomes of it.

From it come the reading of requests (requests.py), docs/api.md (api_page.py) and the OpenAPI document (openapi.py). What
is not named here is refused: an engine's next release may give a new name a meaning that is not a client's to set.
"""

from inference.gateway.shapes import (
    Anything,
    Document,
    Either,
    Fate,
    Field,
    Items,
    Number,
    Record,
    Shape,
    Table,
    Text,
    TokenIds,
    Truth,
    Variants,
    Whole,
    Word,
)

TIERS = ("interactive", "standard", "batch")
MAX_CHOICES = 128
"""The most that HEADWAY_MAX_CHOICES may be set to."""
USUAL_MAX_CHOICES = 16
"""Its default. A request counts as one of its replica's slots however many answers it asks for, so this is kept small."""
MAX_MESSAGES = 4096
MAX_TOOLS = 128
MAX_STOPS = 32
MAX_LOGPROBS = 20
MAX_PROMPT_IDS = 1_000_000
INT32, INT64 = 2**31 - 1, 2**63 - 1

_ANY = Anything()
_TRUTH = Truth()
_NAME = Text(256, 1)
_MAX_TOKENS = Whole(1, INT32)
_TOKEN_ID = Whole(0, INT32)


def _ours(name: str, shape: Shape, text: str, *, is_required: bool = False) -> Field:
    return Field(name, shape, text, Fate.OURS, is_required)


def _vllm(name: str, shape: Shape, text: str = "") -> Field:
    return Field(name, shape, text, Fate.VLLM_ONLY)


def _ignored(name: str, text: str = "") -> Field:
    return Field(name, _ANY, text, Fate.IGNORED)


def _refused(name: str, text: str) -> Field:
    return Field(name, _ANY, text, Fate.REFUSED)


# -- messages

_TEXT_PART = Record(
    Field("type", Word(("text",)), is_required=True), Field("text", Text(), is_required=True), drops_unknown=True
)
_REFUSAL_PART = Record(
    Field("type", Word(("refusal",)), is_required=True), Field("refusal", Text(), is_required=True), drops_unknown=True
)
_PARTS = Items(Variants("type", {"text": _TEXT_PART}), 1024, 1)
_CONTENT = Either((Text(), _PARTS))
_TOOL_CALL = Record(
    Field("id", Text(256)),
    Field("type", Word(("function",)), is_required=True),
    Field(
        "function",
        Record(Field("name", _NAME, is_required=True), Field("arguments", Text(), is_required=True), drops_unknown=True),
        is_required=True,
    ),
    drops_unknown=True,
)


def _message(role: str, *fields: Field) -> Record:
    return Record(Field("role", Word((role,)), is_required=True), *fields, Field("name", Text(256)), drops_unknown=True)


MESSAGE = Variants(
    "role",
    {
        "system": _message("system", Field("content", _CONTENT, is_required=True)),
        "developer": _message("developer", Field("content", _CONTENT, is_required=True)),
        "user": _message("user", Field("content", _CONTENT, is_required=True)),
        "assistant": _message(
            "assistant",
            Field(
                "content", Either((Text(), Items(Variants("type", {"text": _TEXT_PART, "refusal": _REFUSAL_PART}), 1024, 1)))
            ),
            Field("tool_calls", Items(_TOOL_CALL, MAX_TOOLS)),
            Field("reasoning", Text()),
            Field("reasoning_content", Text()),
        ),
        "tool": _message("tool", Field("content", _CONTENT, is_required=True), Field("tool_call_id", Text(256))),
    },
)

# -- tools and formats

_FUNCTION = Record(
    Field("name", _NAME, is_required=True),
    Field("description", Text(16_384)),
    Field("parameters", Document()),
    Field("strict", _TRUTH),
)
TOOL = Record(Field("type", Word(("function",)), is_required=True), Field("function", _FUNCTION, is_required=True))
_NAMED_TOOL = Record(
    Field("type", Word(("function",)), is_required=True),
    Field("function", Record(Field("name", _NAME, is_required=True)), is_required=True),
)


def _format(kind: str, *fields: Field) -> Record:
    return Record(Field("type", Word((kind,)), is_required=True), *fields)


_JSON_SCHEMA = Record(
    Field("name", _NAME, is_required=True),
    Field("description", Text(16_384)),
    Field("schema", Document(), is_required=True),
    Field("strict", _TRUTH),
)
RESPONSE_FORMAT = Variants(
    "type",
    {
        "text": _format("text"),
        "json_object": _format("json_object"),
        "json_schema": _format("json_schema", Field("json_schema", _JSON_SCHEMA, is_required=True)),
    },
)
STREAM_OPTIONS = Record(
    _ours("include_usage", _TRUTH, "One more event before [DONE]: `choices` empty, with `usage`."),
    _ours("continuous_usage_stats", _TRUTH, "With include_usage: running figures in every event."),
    _ignored("include_obfuscation"),
)

# -- what both ways of asking take

_MODEL = _ours("model", Text(1024, 1), "The id of a model, as GET /v1/models lists it.", is_required=True)
_COMMON = (
    _ours("stream", _TRUTH, "Answer with an event stream. A WebSocket always does."),
    _ours("stream_options", STREAM_OPTIONS, "Without effect on answers that are not streamed."),
    _ours("n", Whole(1, MAX_CHOICES), f"Answers a prompt; prompts times n at most {USUAL_MAX_CHOICES}, unless configured."),
    _ours("max_tokens", _MAX_TOKENS, "The smaller of both names counts; without either, the service's default."),
    _ours("max_completion_tokens", _MAX_TOKENS, "The other name of `max_tokens`."),
    _ours("priority", Word(TIERS), "Headway's tier, not an engine's number."),
    Field("temperature", Number(0, 2)),
    Field("top_p", Number(0, 1, is_above_low=True)),
    Field("frequency_penalty", Number(-2, 2)),
    Field("presence_penalty", Number(-2, 2)),
    Field("seed", Whole(-INT64 - 1, INT64)),
    Field("stop", Either((Text(1024, 1), Items(Text(1024, 1), MAX_STOPS))), "The texts are not part of the answer."),
    Field(
        "logit_bias",
        Table(
            lambda name: name.isascii() and name.isdigit() and len(name) <= 10,
            "token ids",
            "^[0-9]{1,10}$",
            Number(-100, 100),
            1024,
        ),
    ),
    Field("user", Text(512), "Whom you serve: while a model has two versions, one of them serves one user."),
    _ours("safety_identifier", Text(512), "The same; it comes before `user`, and is not passed on."),
)
_VLLM_COMMON = (
    _vllm("top_k", Whole(-1, INT32)),
    _vllm("min_p", Number(0, 1)),
    _vllm("repetition_penalty", Number(0, 100, is_above_low=True)),
    _vllm("length_penalty", Number(-100, 100)),
    _vllm("stop_token_ids", Items(_TOKEN_ID, 128)),
    _vllm("include_stop_str_in_output", _TRUTH),
    _vllm("ignore_eos", _TRUTH),
    _vllm("min_tokens", Whole(0, INT32)),
    _vllm("skip_special_tokens", _TRUTH),
    _vllm("spaces_between_special_tokens", _TRUTH),
    _vllm("truncate_prompt_tokens", Whole(-1, INT32)),
    _vllm("truncation_side", Word(("left", "right"))),
    _vllm("prompt_logprobs", Whole(0, MAX_LOGPROBS)),
    _vllm("logprob_token_ids", Items(_TOKEN_ID, 128)),
    _vllm("allowed_token_ids", Items(_TOKEN_ID, 1024)),
    _vllm("bad_words", Items(Text(256, 1), 256)),
    _vllm("add_special_tokens", _TRUTH),
    _vllm("structured_outputs", Document(), "A `json` schema, `regex`, `choice` or `grammar`."),
    _vllm("return_tokens_as_token_ids", _TRUTH),
    _vllm("return_token_ids", _TRUTH),
    _vllm("return_prompt_text", _TRUTH),
    _vllm("thinking_token_budget", Whole(0, INT32)),
    _vllm("repetition_detection", Document()),
    _vllm("stream_interval", Whole(1, 1024)),
)
_IGNORED = (
    _ignored("store", "Nothing is stored."),
    _ignored("metadata"),
    _ignored("service_tier", "`priority` chooses the tier."),
    _ignored("prediction", "A hint that would change the speed only."),
    _ignored("prompt_cache_key", "Prompts are cached by their content."),
    _ignored("prompt_cache_retention"),
    _ignored("verbosity"),
    _ignored("modalities", "Answers are text."),
    _ignored("watermarking"),
    _ignored("return_token_offsets"),
)
_SET_BY_US = "It is set by the service."
_ONLY_STRUCTURED = "Use `structured_outputs` or `response_format`."
_REFUSED = (
    *(
        _refused(name, _SET_BY_US)
        for name in (
            "cache_salt",
            "kv_transfer_params",
            "ec_transfer_params",
            "request_id",
            "session_id",
            "vllm_xargs",
            "data_parallel_rank",
            "routed_experts_prompt_start",
        )
    ),
    _refused("chat_template", "Templates are programs; each model has its own."),
    _refused("prompt_embeds", "Embeddings are not taken."),
    _refused("logits_processors", "Programs are not taken."),
    _refused("use_beam_search", "Beam search is not offered."),
    _refused("best_of", "Use `n`."),
    *(
        _refused(name, "Only text is taken.")
        for name in ("mm_payload", "return_mm_kwargs", "media_io_kwargs", "mm_processor_kwargs")
    ),
    *(
        _refused(name, _ONLY_STRUCTURED)
        for name in ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_decoding_backend")
    ),
)

CHAT = Record(
    _MODEL,
    _ours("messages", Items(MESSAGE, MAX_MESSAGES, 1), "See the messages below.", is_required=True),
    *_COMMON,
    Field("logprobs", _TRUTH),
    Field("top_logprobs", Whole(0, MAX_LOGPROBS)),
    _ours(
        "tools", Items(TOOL, MAX_TOOLS), "`type`, `function`: `name`, `description`, `parameters` (a JSON schema), `strict`."
    ),
    Field("tool_choice", Either((Word(("none", "auto", "required")), _NAMED_TOOL))),
    Field("parallel_tool_calls", _TRUTH),
    Field("response_format", RESPONSE_FORMAT),
    Field("reasoning_effort", Word(("none", "minimal", "low", "medium", "high", "xhigh", "max"))),
    *_VLLM_COMMON,
    _vllm("echo", _TRUTH),
    _vllm("add_generation_prompt", _TRUTH),
    _vllm("continue_final_message", _TRUTH),
    _vllm("documents", Items(Table(lambda _name: True, "names", "", Text(), 64), 256)),
    _vllm("chat_template_kwargs", Document(forbids=("chat_template", "tokenize"))),
    _vllm("include_reasoning", _TRUTH),
    *_IGNORED,
    *_REFUSED,
    _refused("prompt", "Use /v1/completions or /v1/generate."),
    _refused("functions", "Use `tools`."),
    _refused("function_call", "Use `tool_choice`."),
    _refused("audio", "Answers are text."),
    _refused("web_search_options", "There is no search."),
)

COMPLETIONS = Record(
    _MODEL,
    _ours(
        "prompt",
        Either(
            (Text(), Items(Text(), MAX_CHOICES, 1), TokenIds(MAX_PROMPT_IDS), Items(TokenIds(MAX_PROMPT_IDS), MAX_CHOICES, 1))
        ),
        "Several prompts get several answers.",
        is_required=True,
    ),
    *_COMMON,
    Field("logprobs", Whole(0, MAX_LOGPROBS)),
    Field("echo", _TRUTH, "The answer begins with the prompt."),
    Field("suffix", Text(), "vLLM refuses it."),
    *_VLLM_COMMON,
    _vllm("response_format", RESPONSE_FORMAT),
    *_IGNORED,
    *_REFUSED,
    _refused("messages", "Use /v1/chat/completions or /v1/generate."),
)

# A message on the WebSocket, but for a bare body and {"type": "cancel"}.
SOCKET_MESSAGE = Record(
    _ours("api_key", Text(256), "The key, if the handshake had none; it counts for all that follows."),
    _ours("request", _ANY, "The body of POST /v1/generate.", is_required=True),
)

VLLM_ONLY = {
    "chat": frozenset(field.name for field in CHAT.fields if field.fate is Fate.VLLM_ONLY),
    "completions": frozenset(field.name for field in COMPLETIONS.fields if field.fate is Fate.VLLM_ONLY),
}
REFUSED = frozenset(field.name for field in (*CHAT.fields, *COMPLETIONS.fields) if field.fate is Fate.REFUSED)

# With one of these set, an answer that is not streamed takes the engine's own way: folding a stream would lose something.
UNFOLDABLE = frozenset(
    {"tools", "logprobs", "top_logprobs", "echo", "prompt_logprobs", "return_token_ids", "return_prompt_text"}
)
