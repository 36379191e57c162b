"""docs/api.md, made from fields.py, openapi.py and docs/api_choices.md. `manage.py api_documents --write` writes it."""

from inference.gateway import json_body
from inference.gateway.fields import (
    CHAT,
    COMPLETIONS,
    MESSAGE,
    RESPONSE_FORMAT,
    SOCKET_MESSAGE,
    STREAM_OPTIONS,
    USUAL_MAX_CHOICES,
)
from inference.gateway.openapi import ERRORS, REQUEST_HEADERS, RESPONSE_HEADERS
from inference.gateway.shapes import Fate, Field, Record

_HEAD = f"""# The API

Made by `manage.py api_documents --write` from `inference/gateway/fields.py`; the OpenAPI 3.1 document of the same
description is served at `GET /v1/openapi.json` (no key needed).

| path | what |
| --- | --- |
| `POST /v1/chat/completions` | complete a chat, as OpenAI's API does |
| `POST /v1/completions` | complete a text |
| `POST /v1/generate` | either of both: a body with `messages` is a chat, one with `prompt` a text |
| `WS /v1/generate` | the same as messages on a WebSocket, always streamed |
| `GET /v1/requests/{{id}}` | the receipt of a request that has ended: tokens, tier, times, replica and why, cost |
| `GET /v1/models`, `GET /v1/models/{{id}}` | the models; ids may hold slashes, encoded or not, and are case-sensitive |
| `GET /v1/openapi.json` | the OpenAPI document |

Send the key as `Authorization: Bearer <key>` (`x-api-key` and `api-key` are taken too); a key in a URL is refused.

## Bodies

JSON in UTF-8, `content-type: application/json` (`application/*+json`, curl's `application/x-www-form-urlencoded` and none
are taken too). What is checked is, value for value, what the engine is sent.

| in the body | rule |
| --- | --- |
| not UTF-8, UTF-16, a byte order mark | 400 |
| not one JSON object | 400 |
| a name twice in one object, at any depth | 400 |
| `NaN`, `Infinity`, numbers beyond a double (`1e999`), whole numbers beyond 64 bits | 400 |
| half of a surrogate pair (`\\ud83d` alone) | 400 |
| more than {json_body.MAX_DEPTH} levels, or more than {json_body.MAX_VALUES:,} values | 400 |
| null in an optional field | counts as absent |
| a text for a number or a truth (`"stream": "true"`, `"temperature": "0.5"`) | 400 |
| `8.0` for a whole number | read as 8, and sent on as 8 |
| a name that is not in the tables below | 400, code `unknown_parameter` |
| a name that is, but refused | 400, code `unsupported_parameter`: the message says what to use instead |

An error names the field at fault in `param`: `messages[2].content`.
"""

_STREAMS = """## Streams

Events are `data: <JSON>` and a blank line; the last is `data: [DONE]`. All carry the same `id`, `model` and `created`.
With `stream_options.include_usage` every event has `usage: null` and one more, the last before [DONE], has no choices and
the figures. A stream that fails after it has begun ends with `data: {"error": {...}}` and no [DONE], never with a
made-up finish reason; one that fails before is a JSON error with a true status. Comments (lines that start with `:`) may
come at any time.

## WebSocket

Send the key in the handshake's headers, or in the first message: `{"api_key": "...", "request": {...}}`; later messages
are `{"request": {...}}` or, if the key came with the handshake, the bare body. `{"type": "cancel"}` ends the answer that runs.
Each message back is the data of one event, the last of an answer is `[DONE]`; a cancel is answered by `{"type": "cancelled"}`;
while a request waits, its place is told now and then: `{"type": "queued", "position": 3, "estimated_wait_s": 1.2}`;
where there are limits, an answer or error begins with what HTTP has as headers: `{"type": "limits",
"x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "59", "x-ratelimit-reset-requests": "1s", ...}`;
an error object is followed by a close with 4000 + its status. 4408: no request came in time; 1009: a message was too
large; 1012: the gateway shuts down. One answer runs at a time. `request` is the body of `POST /v1/generate`.
"""


def page(choices: str) -> str:
    """The whole page; `choices` is the content of docs/api_choices.md."""
    parts = [
        _HEAD,
        _fields("Fields of a chat", CHAT),
        _messages(),
        _nested("`response_format`", list(RESPONSE_FORMAT.records.values())),
        _nested("`stream_options`", [STREAM_OPTIONS]),
        _fields("Fields of a text completion", COMPLETIONS, below=CHAT),
        f"Prompts times `n` may be at most {USUAL_MAX_CHOICES} (`HEADWAY_MAX_CHOICES`).\n",
        _STREAMS,
        _nested("A message on the WebSocket", [SOCKET_MESSAGE]),
        _headers(),
        _errors(),
        "## Choices\n\nWhere the public faults of this field leave a choice (ids of the acceptance list), this is ours.\n\n"
        + choices.partition("\n\n")[2],
    ]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _fields(title: str, record: Record, *, below: Record | None = None) -> str:
    """With `below`: only what differs from that record."""
    known = {} if below is None else {field.name: field for field in below.fields}
    fields = [field for field in record.fields if known.get(field.name) is not field]
    text = f"## {title}\n\n"
    if below is not None:
        common = [field.name for field in record.fields if known.get(field.name) is field]
        text += f"As for a chat: {len(common)} fields ({', '.join(f'`{name}`' for name in common[:12])}, ...). Beside them:\n\n"
    text += "| field | takes | what becomes of it |\n| --- | --- | --- |\n"
    for field in fields:
        if field.fate not in (Fate.IGNORED, Fate.REFUSED):
            text += f"| `{field.name}`{' (required)' if field.is_required else ''} | {_cell(field)} | {_fate(field)} |\n"
    for fate in (Fate.IGNORED, Fate.REFUSED):
        named = [field for field in fields if field.fate is fate]
        if named:
            text += f"\n{fate.value.capitalize()}: " + "; ".join(_with_text(field) for field in named) + ".\n"
    return text


def _messages() -> str:
    text = "### Messages\n\nOther fields of a message are dropped. Content parts are texts only: engines fetch no URLs.\n\n"
    text += "| role | field | takes |\n| --- | --- | --- |\n"
    for role, record in MESSAGE.records.items():
        for field in record.fields[1:]:
            text += f"| {role} | `{field.name}`{' (required)' if field.is_required else ''} | {_cell(field)} |\n"
    return text


def _nested(title: str, records: list[Record]) -> str:
    text = f"### {title}\n\n| field | takes |\n| --- | --- |\n"
    for record in records:
        for field in record.fields:
            note = f" {field.text}" if field.text else ""
            taken = "ignored" if field.fate is Fate.IGNORED else _cell(field) + ("." + note if note else "")
            text += f"| `{field.name}`{' (required)' if field.is_required else ''} | {taken} |\n"
    return text


def _headers() -> str:
    text = "## Headers\n\n| request | meaning |\n| --- | --- |\n"
    text += "".join(f"| `{name}` | {about} |\n" for name, (_, about) in REQUEST_HEADERS.items())
    text += "\n| response | meaning |\n| --- | --- |\n"
    return text + "".join(f"| `{name}` | {about} |\n" for name, (_, about) in RESPONSE_HEADERS.items())


def _errors() -> str:
    text = '## Errors\n\nEvery answer that is no success is `{"error": {"message", "type", "param", "code"}}`.\n\n'
    text += "| status | meaning |\n| --- | --- |\n"
    return text + "".join(f"| {status} | {about} |\n" for status, about in ERRORS.items())


def _cell(field: Field) -> str:
    return field.shape.words().replace("|", "\\|")


def _fate(field: Field) -> str:
    return f"{field.fate.value}. {field.text}" if field.text else field.fate.value


def _with_text(field: Field) -> str:
    return f"`{field.name}`" + (f" ({field.text.rstrip('.')})" if field.text else "")
