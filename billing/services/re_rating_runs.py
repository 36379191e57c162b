"""Re-ratings on record: asked for once, then done at once (command, a small one over REST) or by a worker, in parts.

Each step (`re_rating.step`) says in its own transaction how far the run is; so it is carried on by whoever comes next.
"""

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from billing.errors import ReferenceUsed
from billing.re_rating_models import ReRating
from billing.services.re_rating import Span, check_reason, rows_of_span, step
from billing.services.references import tidy_reference
from headway.errors import NotFound
from tenants.services.audit import record_audit
from workers.services import outbox

log = structlog.get_logger(__name__)

KIND = "re_rating"
MAX_REQUESTS = 20_000
"""Of one that is answered when it is done: a worker does larger ones."""
STEPS_A_PART = 20
"""Of one outbox entry."""
LEASE_S = 300.0
"""Longer than a part takes."""
STUCK = timedelta(seconds=2 * LEASE_S)
"""One that has not come further for so long may be carried on by hand, or by asking for it again."""


def re_rate(*, span: Span, reason: str, actor: str, reference: str = "", now: datetime | None = None) -> ReRating:
    """Done when it is returned, however many requests it is of. Raises NotFound, InvalidInput, ReferenceUsed."""
    run = _asked(span, reason=reason, actor=actor, reference=reference, by_worker=False)
    return _whole(run, now)


def re_rate_or_ask(*, span: Span, reason: str, actor: str, reference: str = "") -> ReRating:
    """Up to MAX_REQUESTS are done when it is returned; more are a worker's. One that was cut off is carried on."""
    run = _asked(span, reason=reason, actor=actor, reference=reference, by_worker=None)
    if not _is_large(run):
        return _whole(run, None)
    carry_on_again(run.id, actor=actor)
    return run


def ask_to_re_rate(*, span: Span, reason: str, actor: str) -> ReRating:
    """A worker's, however few they are. Raises NotFound, InvalidInput."""
    return _asked(span, reason=reason, actor=actor, reference="", by_worker=True)


def carry_on(ids: dict[str, Any]) -> None:
    """An outbox entry's: {"run": id}. Done again it does nothing."""
    for _ in range(STEPS_A_PART):
        if not step(ids["run"]):
            return
    with transaction.atomic():
        outbox.put(kind=KIND, ids=ids)


def carry_on_again(run_id: int, *, actor: str, now: datetime | None = None) -> bool:
    """Give one that nobody carries on any more to a worker. False: it has ended, or may be under way. Raises NotFound."""
    run, now = one_re_rating(run_id), now or timezone.now()
    with transaction.atomic():
        if not ReRating.objects.filter(_stuck(now), id=run.id).update(moved_at=now):
            return False
        log.warning("re_rating_carried_on", run=run.id)
        record_audit(actor=actor, action="usage.re_rate_again", target=run.model, after={"run": run.id})
        outbox.put(kind=KIND, ids={"run": run.id})
    return True


def is_stuck(run: ReRating, now: datetime) -> bool:
    return run.ended_at is None and (run.moved_at or run.created_at) < now - STUCK


def re_ratings() -> QuerySet[ReRating]:
    return ReRating.objects.all()


def one_re_rating(run_id: int) -> ReRating:
    """Raises NotFound."""
    run = ReRating.objects.filter(id=run_id).first()
    if run is None:
        raise NotFound("there is no such re-rating")
    return run


def _asked(span: Span, *, reason: str, actor: str, reference: str, by_worker: bool | None) -> ReRating:
    """The run of that wish: the one there is where its reference was given before. `by_worker` None: where it is large."""
    check_reason(reason)
    reference, wish = tidy_reference(reference), {**asdict(span), "reason": reason}
    run = ReRating.objects.filter(reference=reference).first() if reference else None
    if run is None:
        _, rows = rows_of_span(span)
        num = len(rows.values_list("id")[: MAX_REQUESTS + 1])
        total = num if num <= MAX_REQUESTS else None
        asked = {**wish, "reference": reference, "actor": actor[:200], "requests_total": total}
        run = _made(asked, by_worker=total is None if by_worker is None else by_worker)
    if any(getattr(run, name) != value for name, value in wish.items()):
        raise ReferenceUsed(f"the reference {reference!r} was used for another re-rating", param="reference")
    return run


def _made(asked: dict[str, Any], *, by_worker: bool) -> ReRating:
    try:
        with transaction.atomic():
            run = ReRating.objects.create(**asked, created_at=timezone.now())
            span = {"from": run.starts_at.isoformat(), "to": run.ends_at.isoformat(), "price": run.price_version}
            after = {"run": run.id, **span, "tenant": str(run.tenant_id or ""), "reason": run.reason}
            record_audit(actor=run.actor, action="usage.re_rate", target=run.model, after=after)
            if by_worker:
                outbox.put(kind=KIND, ids={"run": run.id})
            return run
    except IntegrityError:
        return ReRating.objects.get(reference=asked["reference"])  # two at once: it is the same run


def _whole(run: ReRating, now: datetime | None) -> ReRating:
    while step(run.id, now=now):
        pass
    run.refresh_from_db()
    return run


def _is_large(run: ReRating) -> bool:
    return run.requests_total is None or run.requests_total > MAX_REQUESTS


def _stuck(now: datetime) -> Q:
    """As `is_stuck`."""
    begun = Q(moved_at__lt=now - STUCK)
    return Q(ended_at=None) & (begun | Q(moved_at=None, created_at__lt=now - STUCK))
