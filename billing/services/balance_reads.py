"""Read balances, grants, holds and what happened to them."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from django.db.models import F, Q, Sum

from billing.models import Balance, BalanceEntry, Grant, GrantReturn, GrantUse, Hold
from headway.money import PICOS_A_MICRO
from tenants.selectors import prepaid_among


@dataclass(frozen=True)
class BalanceView:
    is_prepaid: bool
    left_picos: int
    """What may be used now."""
    held_picos: int
    """Set aside by holds that are not over."""
    overdrawn_picos: int
    """Used, and covered by no grant."""
    granted_micros: int
    """The amounts of the grants of which something is left, as they were given."""
    next_expiry_at: datetime | None
    next_expiry_picos: int
    """Of what is left, what expires then."""


def balance_of(tenant_id: UUID, *, now: datetime | None = None) -> BalanceView:
    now = now or datetime.now(UTC)
    balance = Balance.objects.filter(tenant_id=tenant_id).first()
    usable = list(usable_grants(tenant_id, now=now))
    expiries = [grant.expires_at for grant in usable if grant.expires_at and grant.left_picos]
    soonest = min(expiries, default=None)
    return BalanceView(
        is_prepaid=tenant_id in prepaid_among([tenant_id]),
        left_picos=sum(grant.left_picos for grant in usable),
        held_picos=Grant.objects.filter(tenant_id=tenant_id).aggregate(held=Sum("held_picos"))["held"] or 0,
        overdrawn_picos=balance.overdrawn_picos if balance else 0,
        granted_micros=sum(grant.amount_micros for grant in usable if grant.left_picos),
        next_expiry_at=soonest,
        next_expiry_picos=sum(grant.left_picos for grant in usable if soonest and grant.expires_at == soonest),
    )


def usable_grants(tenant_id: UUID, *, now: datetime | None = None) -> list[Grant]:
    """Those that a new request may use, in the order they are used."""
    now = now or datetime.now(UTC)
    rows = Grant.objects.filter(Q(expires_at=None) | Q(expires_at__gt=now), tenant_id=tenant_id, ended_at=None)
    return list(rows.order_by(F("expires_at").asc(nulls_last=True), "created_at", "id"))


def grants_of(tenant_id: UUID) -> list[Grant]:
    """All, newest first."""
    return list(Grant.objects.filter(tenant_id=tenant_id).order_by("-created_at", "id"))


def newest_grants() -> dict[UUID, Grant]:
    """Of each tenant the last that was given and has not ended."""
    return {grant.tenant_id: grant for grant in Grant.objects.filter(ended_at=None).order_by("created_at", "id")}


def grant_with_id(grant_id: UUID | str) -> Grant | None:
    return Grant.objects.filter(id=grant_id).first()


def balance_entries(tenant_id: UUID) -> list[BalanceEntry]:
    """What was granted, expired and taken, newest first."""
    return list(BalanceEntry.objects.filter(tenant_id=tenant_id).select_related("grant").order_by("-id"))


def overdrawn_picos(tenant_id: UUID) -> int:
    """Used, and covered by no grant, by one who pays in advance."""
    row = Balance.objects.filter(tenant_id=tenant_id).first()
    return row.overdrawn_picos if row else 0


def open_holds(tenant_id: UUID) -> list[Hold]:
    states = (Hold.State.ASKED, Hold.State.HELD)
    return list(Hold.objects.filter(tenant_id=tenant_id, state__in=states).order_by("created_at"))


def overdrawn_tenants() -> dict[UUID, int]:
    """Pico-dollars that tenants who pay in advance have used and nothing covers, holds included: page someone."""
    rows = Balance.objects.filter(overdrawn_picos__gt=0)
    overdrawn = dict(rows.values_list("tenant_id", "overdrawn_picos"))
    held = _held(overdrawn)
    return {
        tenant_id: picos - held.get(tenant_id, 0) for tenant_id, picos in overdrawn.items() if picos > held.get(tenant_id, 0)
    }


def lefts(tenant_ids: Iterable[UUID], *, now: datetime | None = None) -> dict[UUID, int]:
    """What each may use now, in whole micro-dollars (rounded down), in one query: for lists."""
    return {tenant_id: picos // PICOS_A_MICRO for tenant_id, picos in lefts_picos(tenant_ids, now=now).items()}


def lefts_picos(tenant_ids: Iterable[UUID], *, now: datetime | None = None) -> dict[UUID, int]:
    """The same, exactly."""
    now = now or datetime.now(UTC)
    rows = Grant.objects.filter(Q(expires_at=None) | Q(expires_at__gt=now), tenant_id__in=set(tenant_ids), ended_at=None)
    return {tenant_id: int(left) for tenant_id, left in rows.values_list("tenant_id").annotate(left=Sum("left_picos"))}


def _held(tenant_ids: Iterable[UUID]) -> dict[UUID, int]:
    rows = Grant.objects.filter(tenant_id__in=set(tenant_ids)).values_list("tenant_id").annotate(held=Sum("held_picos"))
    return {tenant_id: int(held) for tenant_id, held in rows}


def unbalanced_grants() -> list[tuple[UUID, int]]:
    """Grants whose parts do not add up to what was granted, and by how many pico-dollars: page someone.

    What is left, what is held, what was used and not given back, and what was taken away is what was given.
    """
    used = dict(GrantUse.objects.values_list("grant_id").annotate(used=Sum("amount_picos")))
    returned = dict(GrantReturn.objects.values_list("grant_id").annotate(returned=Sum("amount_picos")))
    entered = dict(BalanceEntry.objects.values_list("grant_id").annotate(entered=Sum("amount_picos")))
    found = []
    for grant_id, left, held in Grant.objects.order_by("id").values_list("id", "left_picos", "held_picos"):
        kept = int(used.get(grant_id, 0)) - int(returned.get(grant_id, 0))
        drift = int(entered.get(grant_id, 0)) - left - held - kept
        if drift:
            found.append((grant_id, drift))
    return found
