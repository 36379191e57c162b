"""The records of an attached gateway's requests, as it has told them: what they are settled by if it is lost.

A request that has made tokens is told of once, and then how many it has made, four times a second; its final record comes
with its end and is kept until the ledger has it. Both are second copies of what the gateway's journal holds.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable

import msgspec

from billing.services.ledger import GATEWAY_LOST, UsageDraft
from inference.policy.decisions import Usage

MAX_FINALS = 20_000
"""Of one gateway, that the ledger has not acknowledged; the oldest are forgotten beyond it: their journal has them."""


class ProvisionalRecords:
    def __init__(self) -> None:
        self.open: dict[str, UsageDraft] = {}
        self.finals: OrderedDict[str, UsageDraft] = OrderedDict()

    def told(self, drafts: Iterable[UsageDraft]) -> None:
        for draft in drafts:
            if draft.request_id not in self.finals:
                self.open[draft.request_id] = draft

    def ended(self, request_id: str) -> None:
        self.open.pop(request_id, None)

    def final(self, draft: UsageDraft) -> None:
        self.open.pop(draft.request_id, None)
        self.finals[draft.request_id] = draft
        if len(self.finals) > MAX_FINALS:
            self.finals.popitem(last=False)

    def in_ledger(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self.finals.pop(request_id, None)

    def lost(self, usage_of: Callable[[str], Usage], *, unix_s: float) -> list[UsageDraft]:
        """All of them, as they stand; `usage_of`: what the brain settles such a request by."""
        return [*self.finals.values(), *(_as_lost(draft, usage_of(name), unix_s) for name, draft in self.open.items())]


def _as_lost(draft: UsageDraft, usage: Usage, unix_s: float) -> UsageDraft:
    return msgspec.structs.replace(
        draft,
        end_state=GATEWAY_LOST,
        usage_source="partial",
        completion_tokens=max(draft.completion_tokens, usage.completion_tokens),
        amount_picos=usage.amount_picos if draft.price_version else None,
        ended_at_s=unix_s,
        total_ms=min(max(0, round((unix_s - draft.started_at_s) * 1000)), 2**31 - 1),
    )
