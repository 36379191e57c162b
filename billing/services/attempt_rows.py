"""What engines did for requests that were not just answered whole at the first attempt: written with the ledger's records."""

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from billing.models import Attempt, AttemptOutcome

_NEUTRAL_ENDINGS = frozenset(
    {
        "parked",
        "client_gone_before_first_token",
        "client_gone_after_first_token",
        "cut_by_drain",
        "gateway_lost",
        "refused",
    }
)


def outcome_of(ending: str) -> AttemptOutcome:
    """What it says about who served it: nothing where its client left, or was at fault, or we ended it."""
    if ending == "done":
        return AttemptOutcome.OK
    return AttemptOutcome.NEUTRAL if ending in _NEUTRAL_ENDINGS else AttemptOutcome.FAILED


class AttemptDraft(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt on its way. Tokens are what its engine said; `max_`: what it may have counted at most, unseen by us."""

    number: int
    replica: str
    replica_epoch: int
    ending: str  # parked, or an end state
    started_at_s: float
    ended_at_s: float
    prompt_tokens: int = 0
    completion_tokens: int = 0
    max_prompt_tokens: int = 0
    max_completion_tokens: int = 0
    model: str = ""
    version: str = ""
    outcome: str = ""
    ttft_ms: int | None = None  # since it was dispatched
    inter_token_ms: float | None = None


def write_attempts(attempts: dict[str, tuple[AttemptDraft, ...]], *, replaced: Iterable[str]) -> None:
    """By request id; call it in the ledger's transaction. `replaced`: whose rows another record has left."""
    Attempt.objects.filter(request_id__in=list(replaced)).delete()
    Attempt.objects.bulk_create([_row(request_id, draft) for request_id in sorted(attempts) for draft in attempts[request_id]])


def _row(request_id: str, draft: AttemptDraft) -> Attempt:
    return Attempt(
        request_id=request_id,
        number=draft.number,
        replica=draft.replica,
        replica_epoch=draft.replica_epoch,
        ending=draft.ending,
        model=draft.model,
        version=draft.version,
        outcome=draft.outcome or outcome_of(draft.ending),
        ttft_ms=draft.ttft_ms,
        inter_token_ms=draft.inter_token_ms,
        prompt_tokens=draft.prompt_tokens,
        completion_tokens=draft.completion_tokens,
        max_prompt_tokens=draft.max_prompt_tokens,
        max_completion_tokens=draft.max_completion_tokens,
        started_at=datetime.fromtimestamp(draft.started_at_s, UTC),
        ended_at=datetime.fromtimestamp(draft.ended_at_s, UTC),
    )
