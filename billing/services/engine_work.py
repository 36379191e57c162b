"""What ledger and attempts say that one engine has counted, as causes for reconciliation."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count as CountOf
from django.db.models import Exists, F, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce

from billing.models import Attempt, UsageRecord
from billing.services.ledger import GATEWAY_LOST
from billing.services.reconciliation import AGENT, ANSWERED, LOST, NOT_ON_RECORD, OPEN, Work
from inference.services.engine_counters import Count

CLOCK_SLACK = timedelta(seconds=2)
"""How far the clocks of a gateway and a node may be apart: what ended so near to the count is taken for open."""
UNKNOWN_CONTEXT_TOKENS = 2**20
"""What a request may have taken of an engine that does not tell its context."""
MAX_IDS = 20


def causes_of(count: Count) -> dict[str, Work]:
    """By cause, as of when the engine was counted; what began later is left out."""
    causes: dict[str, Work] = {}
    for cause, work in _pieces(count):
        causes[cause] = causes.get(cause, Work()) + work
    num_open = causes[OPEN].count if OPEN in causes else 0
    unknown = max(0, count.open_requests - num_open)
    if unknown:
        causes[NOT_ON_RECORD] = _contexts(count, unknown)
    return {cause: work for cause, work in causes.items() if work != Work()}


def _pieces(count: Count) -> Iterator[tuple[str, Work]]:
    yield (
        AGENT,
        Work(
            0,
            count.own_prompt_tokens,
            count.own_max_prompt_tokens,
            count.own_completion_tokens,
            count.own_max_completion_tokens,
        ),
    )
    settled, is_open = _by_time(count)
    yield from _answered(_records(count), settled, is_open)
    attempts = Attempt.objects.filter(replica=count.replica, replica_epoch=count.epoch)
    by_ending: Any = attempts.filter(settled).values("ending").annotate(**_ATTEMPT_SUMS).order_by("ending")
    for row in by_ending:
        cause = ANSWERED if row["ending"] == "done" else row["ending"]
        yield cause, Work(row["count"], row["low_prompt"], row["high_prompt"], row["low_completion"], row["high_completion"])
    row = attempts.filter(is_open).aggregate(**_ATTEMPT_SUMS)
    yield OPEN, Work.at_most(row["count"], row["high_prompt"] or 0, row["high_completion"] or 0)
    yield LOST, _contexts(count, _nowhere(count).count())


_ATTEMPT_SUMS = {
    "count": CountOf("id"),
    "low_prompt": Sum("prompt_tokens"),
    "high_prompt": Sum("max_prompt_tokens"),
    "low_completion": Sum("completion_tokens"),
    "high_completion": Sum("max_completion_tokens"),
}
_RECORD_SUMS = {"count": CountOf("id"), "prompt": Sum("prompt_tokens"), "completion": Sum("completion_tokens")}


def _by_time(count: Count) -> tuple[Q, Q]:
    """Ended before the engine was counted; and under way then."""
    ended_before, began_after = count.counted_from - CLOCK_SLACK, count.counted_at + CLOCK_SLACK
    return Q(ended_at__lte=ended_before), Q(ended_at__gt=ended_before, started_at__lt=began_after)


def _records(count: Count) -> QuerySet[UsageRecord]:
    """Those that tell everything themselves."""
    has_rows = Exists(Attempt.objects.filter(request_id=OuterRef("request_id")))
    return UsageRecord.objects.filter(replica=count.replica, replica_epoch=count.epoch).filter(~has_rows)


def _answered(records: QuerySet[UsageRecord], settled: Q, is_open: Q) -> Iterator[tuple[str, Work]]:
    row: dict[str, Any] = records.filter(settled).aggregate(**_RECORD_SUMS)
    yield ANSWERED, Work.exactly(row["count"], row["prompt"] or 0, row["completion"] or 0)
    row = records.filter(is_open).aggregate(**_RECORD_SUMS)
    yield OPEN, Work.at_most(row["count"], row["prompt"] or 0, row["completion"] or 0)


def _nowhere(count: Count) -> QuerySet[UsageRecord]:
    """Requests of its pool whose gateway was lost before it told where they ran, while this engine did."""
    began_at: datetime = count.began_at or count.counted_from
    lost = UsageRecord.objects.filter(end_state=GATEWAY_LOST, replica="", pool=count.pool)
    return lost.filter(ended_at__gte=began_at - CLOCK_SLACK, started_at__lt=count.counted_at + CLOCK_SLACK)


def _contexts(count: Count, requests: int) -> Work:
    tokens = requests * (count.max_model_len or UNKNOWN_CONTEXT_TOKENS)
    return Work.at_most(requests, tokens, tokens)


def inconsistent_requests(count: Count) -> list[str]:
    """Ids of some requests whose record and attempts do not agree: a row an attempt, and no token that no attempt made."""
    rows = Attempt.objects.filter(request_id=OuterRef("request_id")).order_by().values("request_id")
    records = UsageRecord.objects.filter(replica=count.replica, replica_epoch=count.epoch).exclude(end_state=GATEWAY_LOST)
    records = records.filter(Q(attempts__gt=1) | ~Q(end_state="done")).annotate(
        num_rows=Coalesce(Subquery(rows.annotate(n=CountOf("id")).values("n")), 0),
        made=Coalesce(Subquery(rows.annotate(n=Sum("completion_tokens")).values("n")), 0),
    )
    wrong = ~Q(num_rows=F("attempts")) | Q(completion_tokens__gt=F("made"))
    wrong |= Q(attempts=1) & ~Q(completion_tokens=F("made"))
    return list(records.filter(wrong).order_by("id").values_list("request_id", flat=True)[:MAX_IDS])
