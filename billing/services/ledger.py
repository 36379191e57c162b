"""Write usage records. The door through which the gateway's journal reaches the ledger."""

from datetime import UTC, datetime

import msgspec
from django.db import transaction

from billing.models import UsageRecord


class UsageDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A usage record on its way: what the gateway knows at the end of a request. Times are unix seconds (UTC)."""

    request_id: str
    tenant_id: str
    key_id: str
    member_id: int | None
    route: str
    model: str
    tier: str
    end_state: str
    gateway: str
    started_at_s: float
    ended_at_s: float
    version: str = ""
    pool: str = ""
    replica: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    usage_source: str = "none"  # engine: final figures; partial: the last running figures; none: not known
    queue_ms: int = 0
    ttft_ms: int | None = None
    total_ms: int = 0
    finish_reason: str = ""
    attempts: int = 0
    journal_sequence: int = 0


_DIRECT = tuple(name for name in UsageDraft.__struct_fields__ if name not in {"started_at_s", "ended_at_s"})


def record_usage(*, drafts: list[UsageDraft]) -> int:
    """Insert all, in one transaction; one whose request id is in the ledger already is left out. Returns how many were given."""
    rows = [
        UsageRecord(
            **{name: getattr(draft, name) for name in _DIRECT},
            started_at=datetime.fromtimestamp(draft.started_at_s, UTC),
            ended_at=datetime.fromtimestamp(draft.ended_at_s, UTC),
        )
        for draft in drafts
    ]
    with transaction.atomic():
        UsageRecord.objects.bulk_create(rows, ignore_conflicts=True)
    return len(rows)
