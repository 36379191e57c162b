"""The request log of a tenant: a page of it, and one request's receipt with its timeline."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Q

from billing.selectors import LEFT, WENT_WELL, requests_of_tenant, with_corrections
from dashboard.paging import Page, by_time
from inference.selectors import model_ids
from tenants.selectors import keys_of_tenant
from tenants.services.tickets import PLAYGROUND_KEY_ID

ENDINGS = (("done", "Done"), ("stopped", "Stopped by the client"), ("refused", "Refused"), ("failed", "Failed"))
_WANTED = {
    "done": Q(end_state__in=WENT_WELL),
    "stopped": Q(end_state__in=LEFT),
    "refused": Q(end_state="refused"),
    "failed": ~Q(end_state__in=(*WENT_WELL, *LEFT, "refused")),
}
_REQUEST_ID = re.compile(r"req_[0-9a-f]{24}", re.ASCII)
_NUMBER = re.compile(r"\d{1,12}", re.ASCII)
WAITED_S = 60
"""A receipt comes about a second after its request ended; behind a page that waits longer is none."""
_BAR_UNITS = 1000
MAX_LISTED_KEYS = 200
PLACEHOLDER = "Your prompt"


@dataclass(frozen=True)
class RequestLog:
    page: Page
    query: str
    model: str
    key: str
    ended: str
    models: list[str]
    keys: list[Any]
    key_names: dict[str, str]
    endings: tuple[tuple[str, str], ...] = ENDINGS

    @property
    def is_filtered(self) -> bool:
        return bool(self.query or self.model or self.key or self.ended or self.page.newer)


@dataclass(frozen=True)
class Phase:
    name: str
    ms: int
    x: float  # of 1,000
    width: float


def request_log(tenant: Any, asked: Mapping[str, str]) -> RequestLog:
    query, model, key, ended = (asked.get(name, "").strip()[:200] for name in ("q", "model", "key", "ended"))
    rows = requests_of_tenant(tenant.id).filter(_WANTED.get(ended, Q()))
    if query:
        rows = rows.filter(request_id__startswith=query)
    if model:
        rows = rows.filter(model=model)
    if key:
        rows = rows.filter(key_id=key)
    keys = list(keys_of_tenant(tenant)[:MAX_LISTED_KEYS])
    return RequestLog(
        page=by_time(with_corrections(rows), "ended_at", asked.get("page", "")),
        query=query,
        model=model,
        key=key,
        ended=ended if ended in _WANTED else "",
        models=model_ids(),
        keys=keys,
        key_names=names_of_keys(keys),
    )


def is_request_id(text: str) -> bool:
    return _REQUEST_ID.fullmatch(text) is not None


def opened_at_s(asked: str, now_s: float) -> int | None:
    """When a page that waits for a receipt was opened, as it says itself (whole seconds); None: it has waited long enough."""
    opened_s = int(asked) if _NUMBER.fullmatch(asked) else int(now_s)
    return opened_s if 0 <= now_s - opened_s < WAITED_S else None


def names_of_keys(keys: list[Any]) -> dict[str, str]:
    return {PLAYGROUND_KEY_ID: "playground"} | {key.id: key.name for key in keys}


def phases_of(record: Mapping[str, Any]) -> list[Phase]:
    """Queue, prefill (from the grant to the first token), decode: as shares of one bar."""
    total, queue = record["total_ms"], min(record["queue_ms"], record["total_ms"])
    first = record["ttft_ms"]
    parts = [("Queue", queue)]
    parts += [("Prefill", max(0, min(first, total) - queue)), ("Decode", max(0, total - max(first, queue)))] if first else []
    whole, x, phases = max(1, sum(ms for _, ms in parts)), 0.0, []
    for name, part_ms in parts:
        width = part_ms / whole * _BAR_UNITS
        phases.append(Phase(name, part_ms, round(x, 2), round(width, 2)))
        x += width
    return phases


_CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "/v1/chat/completions": ("/chat/completions", {"messages": [{"role": "user", "content": PLACEHOLDER}]}),
    "/v1/completions": ("/completions", {"prompt": PLACEHOLDER}),
    "/v1/generate": ("/generate", {"prompt": PLACEHOLDER}),
}


def curl_of(record: Mapping[str, Any], api_url: str) -> str:
    """A request like this one: its route and model, and what is known of its parameters. A blank for one of no model."""
    path, prompt = _CALLS.get(record["route"].removeprefix("WS "), ("", {}))
    if not path or not record["model"]:
        return ""
    body = {"model": record["model"], **prompt}
    if record["finish_reason"] == "length":
        body["max_tokens"] = record["completion_tokens"]  # where it was cut
    if record["tier"] != "standard":
        body["priority"] = record["tier"]
    text = json.dumps(body, indent=2, ensure_ascii=False).replace("'", "'\\''")
    lines = (
        f"curl {api_url}{path}",
        '-H "Authorization: Bearer $HEADWAY_API_KEY"',
        '-H "Content-Type: application/json"',
        f"-d '{text}'",
    )
    return " \\\n  ".join(lines)


def pace_of(record: Mapping[str, Any]) -> float | None:
    """Output tokens a second after the first."""
    first, tokens = record["ttft_ms"], record["completion_tokens"]
    if first is None or tokens < 2 or record["total_ms"] <= first:
        return None
    pace: float = (tokens - 1) * 1000 / (record["total_ms"] - first)
    return pace
