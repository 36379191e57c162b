"""What became of a request, for its tenant: GET /v1/requests/{id}.

The last ones that ended here are in memory; others are looked up in the ledger, on a thread, as it may be away.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import structlog
from django.db import DatabaseError, InterfaceError, connection

from billing.selectors import usage_of_request
from billing.services.ledger import UsageDraft
from headway.errors import NotFound, Unavailable
from headway.money import picos_to_usd

log = structlog.get_logger(__name__)

_REQUEST_ID = re.compile(r"req_[0-9a-f]{24}")
MAX_KEPT = 4096
LOOK_UP_S = 5.0


class UnknownRequest(NotFound):
    """Fix the id; or wait: a request has a receipt when it has ended, at the latest a second after."""

    code = "request_not_found"


class LedgerAway(Unavailable):
    """Retry; the ledger cannot be read at the moment."""

    code = "ledger_unavailable"


Find = Callable[[str, str], dict[str, Any] | None]


def find_in_ledger(tenant_id: str, request_id: str) -> dict[str, Any] | None:
    """On a thread. Raises LedgerAway."""
    try:
        return usage_of_request(tenant_id, request_id)
    except (DatabaseError, InterfaceError) as error:
        log.warning("ledger_not_read", reason=type(error).__name__)
        raise LedgerAway("The ledger cannot be read at the moment. Retry.", retry_after_s=2.0) from None
    finally:
        connection.close()


class Receipts:
    def __init__(self, find: Find = find_in_ledger) -> None:
        self._find = find
        self._ended: OrderedDict[str, UsageDraft] = OrderedDict()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="receipts")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def keep(self, draft: UsageDraft) -> None:
        self._ended[draft.request_id] = draft
        if len(self._ended) > MAX_KEPT:
            self._ended.popitem(last=False)

    async def of(self, tenant_id: str, request_id: str) -> dict[str, Any]:
        """Raises UnknownRequest, also for another tenant's; LedgerAway."""
        draft = self._ended.get(request_id)
        fields: dict[str, Any] | None = None
        if draft is not None:
            fields = _fields(draft) if draft.tenant_id == tenant_id else None
        elif _REQUEST_ID.fullmatch(request_id):  # others are in no ledger, and may hold what no database takes
            found = asyncio.get_running_loop().run_in_executor(self._threads, self._find, tenant_id, request_id)
            try:
                fields = await asyncio.wait_for(found, LOOK_UP_S)
            except TimeoutError:
                raise LedgerAway("The ledger did not answer in time. Retry.", retry_after_s=2.0) from None
        if fields is None:
            raise UnknownRequest(f"There is no receipt {request_id[:64]!a}; a request has one when it has ended.", param="id")
        return shown(fields)


def _fields(draft: UsageDraft) -> dict[str, Any]:
    fields: dict[str, Any] = {name: getattr(draft, name) for name in draft.__struct_fields__}
    for name in ("started_at", "ended_at"):
        fields[name] = datetime.fromtimestamp(fields[f"{name}_s"], UTC)
    return fields


def shown(fields: dict[str, Any]) -> dict[str, Any]:
    """The receipt from a usage record's fields."""
    return {
        "id": fields["request_id"],
        "object": "request",
        "route": fields["route"],
        "model": fields["model"],
        "version": fields["version"],
        "tier": fields["tier"],
        "end_state": fields["end_state"],
        "finish_reason": fields["finish_reason"] or None,
        "usage": {
            "prompt_tokens": fields["prompt_tokens"],
            "cached_tokens": fields["cached_tokens"],
            "completion_tokens": fields["completion_tokens"],
            "source": fields["usage_source"],
        },
        "timing": {"queue_ms": fields["queue_ms"], "ttft_ms": fields["ttft_ms"], "total_ms": fields["total_ms"]},
        "routing": {
            "replica": fields["replica"] or None,
            "reason": fields["route_reason"] or None,
            "attempts": fields["attempts"],
            "resumes": fields["resumes"],
            "is_exact": fields["is_resumed_exactly"],
            "parks": fields["parks"],
        },
        "cost": {
            "price_version": fields["price_version"] or None,
            "discount_percent": fields["discount_percent"],
            "amount_usd": None if fields["amount_picos"] is None else picos_to_usd(fields["amount_picos"]),
            "currency": "USD",
        },
        "started_at": fields["started_at"].isoformat().replace("+00:00", "Z"),
        "ended_at": fields["ended_at"].isoformat().replace("+00:00", "Z"),
    }
