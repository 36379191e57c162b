"""Usage drafts, and a ledger in memory that can be away, for tests of the journal."""

import threading
import uuid
from typing import Any

from django.db import OperationalError

from billing.services.ledger import UsageDraft

TENANT_ID = str(uuid.UUID(int=1))


def draft(request_id: str, end_state: str = "gateway_lost", **changes: Any) -> UsageDraft:
    fields: dict[str, Any] = {
        "request_id": request_id,
        "tenant_id": TENANT_ID,
        "key_id": "k" * 12,
        "member_id": None,
        "route": "/v1/chat/completions",
        "model": "m",
        "tier": "standard",
        "end_state": end_state,
        "gateway": "",
        "started_at_s": 1_800_000_000.0,
        "ended_at_s": 1_800_000_001.0,
    }
    return UsageDraft(**(fields | changes))


class MemoryLedger:
    """Remembers what was committed; the first record of a request stays, unless it says that its gateway was lost."""

    def __init__(self) -> None:
        self.records: dict[str, UsageDraft] = {}
        self.is_away = False
        self.num_commits = 0
        self._lock = threading.Lock()

    def __call__(self, drafts: list[UsageDraft]) -> None:
        if self.is_away:
            raise OperationalError("the database is away")
        with self._lock:
            self.num_commits += 1
            for entry in drafts:
                known = self.records.get(entry.request_id)
                if known is None or known.end_state == "gateway_lost":
                    self.records[entry.request_id] = entry

    def ends(self) -> dict[str, str]:
        return {request_id: record.end_state for request_id, record in self.records.items()}
