"""Rows of the ledger as they lie there, in one line each."""

import itertools
import uuid
from typing import Any

from django.utils import timezone

from billing.models import Attempt, UsageRecord

_numbers = itertools.count(1)


def usage_record(**changes: Any) -> str:
    """A request's record that ended just now; its request id."""
    number, now = next(_numbers), timezone.now()
    values: dict[str, Any] = {
        "request_id": f"req_{number}",
        "tenant_id": uuid.UUID(int=1),
        "key_id": "k",
        "route": "/v1/chat/completions",
        "model": "m",
        "tier": "standard",
        "usage_source": "engine",
        "end_state": "done",
        "billing_month": f"{now:%Y-%m}",
        "gateway": "g",
        "journal_sequence": number,
        "started_at": now,
        "ended_at": now,
    }
    return UsageRecord.objects.create(**{**values, **changes}).request_id


def attempt(request_id: str, *, replica: str, ending: str, number: int = 1) -> None:
    now = timezone.now()
    tokens = ("prompt_tokens", "completion_tokens", "max_prompt_tokens", "max_completion_tokens")
    Attempt.objects.create(
        request_id=request_id,
        number=number,
        replica=replica,
        replica_epoch=1,
        ending=ending,
        started_at=now,
        ended_at=now,
        **dict.fromkeys(tokens, 0),
    )
