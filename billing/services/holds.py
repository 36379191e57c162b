"""Credit that is set aside before it is taken away: the gateways count it at once, and what runs is never cut.

    asked -> held -> taken
        `-----`----> released

A move is an UPDATE of the state that is expected, so of two who move a hold one does. Those that write hold the tenant's
usage (`wait_for_writers`).
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from asgiref.sync import async_to_sync
from django.db import transaction
from django.db.models import F

from billing.credit_models import TRANSITIONS, BalanceEntry, Grant, Hold, HoldPart
from billing.errors import BalanceTooSmall, ReferenceUsed
from billing.services.credit_use import eating_order, tell_balance
from billing.services.usage_rows import wait_for_writers
from headway.money import PICOS_A_MICRO, micros_to_usd, picos_to_usd
from inference.selectors import brain_seen
from inference.services.feed_progress import gateways_that_may_live, wait_for_acknowledgement
from tenants.selectors import prepaid_among

Look = Callable[[], "dict[str, Any] | None"]
POLL_S = 0.2


def set_aside(
    *,
    tenant_id: UUID,
    kind: BalanceEntry.Kind,
    amount_micros: int,
    grant_id: UUID | None,
    reason: str,
    actor: str,
    reference: str,
    now: datetime,
) -> tuple[Hold, int | None]:
    """The hold, and the change of the feed that tells of it; None: it was taken before, with this reference.

    Of one grant, or (None) of those that usage would use first. Raises BalanceTooSmall, ReferenceUsed.
    """
    with transaction.atomic():
        wait_for_writers([tenant_id])
        known = Hold.objects.filter(reference=reference).exclude(state=Hold.State.RELEASED).first() if reference else None
        if known is not None:
            if known.state != Hold.State.TAKEN or not _is_same(known, tenant_id, kind, amount_micros, grant_id):
                raise ReferenceUsed(f"the reference {reference!r} is in use", param="reference")
            return known, None
        grants = [grant for grant in eating_order([tenant_id]) if grant_id in (None, grant.id)]
        usable = [grant for grant in grants if grant.expires_at is None or grant.expires_at > now]
        parts = _parts(usable, amount_micros * PICOS_A_MICRO)
        hold = Hold.objects.create(
            tenant_id=tenant_id,
            kind=kind,
            amount_micros=amount_micros,
            reason=reason,
            reference=reference,
            actor=actor[:200],
            created_at=now,
        )
        for grant, picos in parts:
            HoldPart.objects.create(hold=hold, grant=grant, amount_picos=picos)
            _move(grant.id, left=-picos, held=picos)
        return hold, tell_balance(tenant_id, now=now)


def take_hold(hold: Hold, *, now: datetime) -> bool:
    """Everybody counts it, and nothing that runs can need it. False: it was released meanwhile."""
    if not (_advance(hold, Hold.State.ASKED, Hold.State.HELD) and _advance(hold, Hold.State.HELD, Hold.State.TAKEN, at=now)):
        return False
    for part in hold.parts.order_by("id"):
        _move(part.grant_id, left=0, held=-part.amount_picos)
        BalanceEntry.objects.create(
            tenant_id=hold.tenant_id,
            grant_id=part.grant_id,
            kind=hold.kind,
            amount_picos=-part.amount_picos,
            reason=hold.reason,
            actor=hold.actor,
            created_at=now,
        )
    return True


def release_hold(hold: Hold, *, now: datetime) -> bool:
    """False: it was taken or released by somebody else."""
    if not (
        _advance(hold, Hold.State.ASKED, Hold.State.RELEASED, at=now)
        or _advance(hold, Hold.State.HELD, Hold.State.RELEASED, at=now)
    ):
        return False
    for part in hold.parts.order_by("id"):
        _move(part.grant_id, left=part.amount_picos, held=-part.amount_picos)
    return True


def wait_until_counted(tenant_id: UUID, change_id: int, *, wait_s: float, look: Look) -> str:
    """Blank: everyone who admits requests counts the balance as this change tells it, and all that runs fits into it.

    Else why not, after `wait_s`. Call it outside a transaction. One who pays later is not limited by a balance.
    """
    if tenant_id not in prepaid_among([tenant_id]):
        return ""
    ends_s = time.monotonic() + wait_s
    behind = [name for name, has_applied in wait_for_acknowledgement(change_id, wait_s) if not has_applied]
    if behind:
        return f"{', '.join(behind)} did not hear of it in time"
    while True:
        why_not = fits_now(str(tenant_id), change_id, look())
        if not why_not or time.monotonic() >= ends_s:
            return why_not
        time.sleep(POLL_S)


def fits_now(tenant_id: str, change_id: int, seen: dict[str, Any] | None) -> str:
    """Blank, or why not; `seen`: what the dispatcher shows."""
    if seen is None:
        return "the dispatcher does not answer" if gateways_that_may_live(datetime.now(UTC)) else ""
    if not seen["is_open"]:
        return "a new dispatcher has not heard of all that runs yet"
    balance = seen["limits"].get("balances", {}).get(tenant_id)
    if balance is None or balance["told_by"] < change_id:
        return "the dispatcher has not heard of it yet"
    short = int(balance["spent_picos"]) + int(balance["reserved_picos"]) - int(balance["credit_picos"])
    return f"requests that run may need ${picos_to_usd(short)} of it" if short > 0 else ""


def look_at_brain() -> dict[str, Any] | None:
    """What the dispatcher shows; from synchronous code."""
    return async_to_sync(brain_seen)()


def _parts(grants: list[Grant], picos: int) -> list[tuple[Grant, int]]:
    parts, missing = [], picos
    for grant in grants:
        if taken := min(missing, grant.left_picos):
            parts.append((grant, taken))
            missing -= taken
    if missing:
        left = (picos - missing) // PICOS_A_MICRO
        raise BalanceTooSmall(f"only ${micros_to_usd(left)} of the ${micros_to_usd(picos // PICOS_A_MICRO)} are left")
    return parts


def _move(grant_id: UUID, *, left: int, held: int) -> None:
    Grant.objects.filter(id=grant_id).update(left_picos=F("left_picos") + left, held_picos=F("held_picos") + held)


def _advance(hold: Hold, expected: Hold.State, state: Hold.State, *, at: datetime | None = None) -> bool:
    assert state in TRANSITIONS[expected], f"a hold does not go from {expected} to {state}"
    moved = Hold.objects.filter(id=hold.id, state=expected).update(state=state, ended_at=at)
    if moved:
        hold.state, hold.ended_at = state, at
    return bool(moved)


def _is_same(hold: Hold, tenant_id: UUID, kind: str, amount_micros: int, grant_id: UUID | None) -> bool:
    if (hold.tenant_id, hold.kind, hold.amount_micros) != (tenant_id, kind, amount_micros):
        return False
    return grant_id is None or set(hold.parts.values_list("grant_id", flat=True)) == {grant_id}
