"""Re-ratings that are asked for over REST: on record, once for a reference, and short enough for an answer."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import F, QuerySet

from billing.errors import ReferenceUsed
from billing.re_rating_models import ReRating
from billing.services.re_rating import re_rate, rows_of_span
from billing.services.references import tidy_reference
from headway.errors import InvalidInput, NotFound

MAX_REQUESTS = 20_000
"""Of one that is answered when it is done: more are for the command."""


def re_rate_on_record(
    *,
    model: str,
    price_version: int,
    starts_at: datetime,
    ends_at: datetime,
    reason: str,
    actor: str,
    tenant_id: UUID | None = None,
    reference: str = "",
    now: datetime | None = None,
) -> ReRating:
    """As `re_rate`. The same `reference` with the same wish is the one that was made then; where that was cut off, it is
    carried on. Raises what `re_rate` raises, InvalidInput for more than MAX_REQUESTS, ReferenceUsed.
    """
    now, reference = now or datetime.now(UTC), tidy_reference(reference)
    span: dict[str, Any] = {"model": model, "starts_at": starts_at, "ends_at": ends_at, "tenant_id": tenant_id}
    wish = {**span, "price_version": price_version, "reason": reason}
    known = ReRating.objects.filter(reference=reference).first() if reference else None
    if known is None:
        _, rows = rows_of_span(**span, version=price_version, reason=reason)
        if len(rows.values_list("id")[: MAX_REQUESTS + 1]) > MAX_REQUESTS:
            most = f"{MAX_REQUESTS:,}"
            raise InvalidInput(
                f"more than {most} requests ended then: ask for parts of it, or use manage.py re_rate", param="ends_at"
            )
        known = _made(wish, reference=reference, actor=actor[:200], created_at=now)
    if any(getattr(known, name) != value for name, value in wish.items()):
        raise ReferenceUsed(f"the reference {reference!r} was used for another re-rating", param="reference")
    if known.ended_at is None:
        _carry_out(known, wish, actor=actor, now=now)
    known.refresh_from_db()
    return known


def re_ratings() -> QuerySet[ReRating]:
    return ReRating.objects.all()


def one_re_rating(run_id: int) -> ReRating:
    """Raises NotFound."""
    run = ReRating.objects.filter(id=run_id).first()
    if run is None:
        raise NotFound("there is no such re-rating")
    return run


def _made(wish: dict[str, Any], *, reference: str, actor: str, created_at: datetime) -> ReRating:
    try:
        with transaction.atomic():
            return ReRating.objects.create(**wish, reference=reference, actor=actor, created_at=created_at)
    except IntegrityError:
        return ReRating.objects.get(reference=reference)  # two at once: no request is adjusted by both


def _carry_out(run: ReRating, wish: dict[str, Any], *, actor: str, now: datetime) -> None:
    mine = ReRating.objects.filter(id=run.id)

    def count(adjusted: int, amount_picos: int) -> None:
        mine.update(adjusted=F("adjusted") + adjusted, amount_picos=F("amount_picos") + amount_picos)

    span = {name: value for name, value in wish.items() if name != "price_version"}
    done = re_rate(**span, version=run.price_version, actor=actor, now=now, count=count)
    mine.filter(ended_at=None).update(ended_at=datetime.now(UTC), requests=done.requests)
