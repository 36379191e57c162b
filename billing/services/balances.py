"""Give credit, and take it away again.

A tenant's balance has one owner at a time. While it is spent that is the dispatcher, which adds up what it has let in. So
credit is only ever pushed to it; to take some away is a hold first (`holds`), which it counts at once, and is done when
nothing it let in before can need it any more.
"""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from django.db import IntegrityError, transaction

from billing.credit_models import BalanceEntry, Grant, GrantKind, Hold
from billing.errors import BalanceBusy, ReferenceUsed
from billing.services.credit_account import Account
from billing.services.credit_use import eating_order, open_balance, tell_balance
from billing.services.holds import Look, look_at_brain, release_hold, set_aside, take_hold, wait_until_counted
from billing.services.open_months import open_month
from billing.services.usage_rows import wait_for_writers
from headway.errors import InvalidInput
from headway.money import MICROS_A_USD, PICOS_A_MICRO, micros_to_usd
from headway.months import UTC_NAME
from tenants.errors import UnknownTenant
from tenants.selectors import prepaid_among, tenant_with_id, time_zones
from tenants.services.audit import record_audit

MAX_GRANT_MICROS = 1_000_000 * MICROS_A_USD
MAX_REASON_CHARS, MAX_REFERENCE_CHARS = 500, 200
EXPIRED_USE_COMES_WITHIN = timedelta(minutes=10)
"""After a grant has expired: by then the ledger has what was begun before, which may use it."""
STALE_HOLD = timedelta(minutes=10)
"""Whoever asked for a hold that is older, and not taken, is gone."""
WAIT_S = 10.0
SWEEP_WAIT_S = 1.0


def grant_credit(
    *,
    tenant_id: UUID,
    amount_micros: int,
    reason: str,
    actor: str,
    kind: str = GrantKind.GOODWILL,
    expires_at: datetime | None = None,
    reference: str = "",
    now: datetime | None = None,
) -> Grant:
    """It may be used at once. `reference` names what it is given for (a payment): given again, it is the same grant.

    Raises InvalidInput; ReferenceUsed where the reference was for something else.
    """
    now = now or datetime.now(UTC)
    _check(tenant_id, amount_micros, reason, reference)
    if kind not in GrantKind.values:
        raise InvalidInput(f"a kind of credit is one of {', '.join(GrantKind.values)}", param="kind")
    try:
        with transaction.atomic():
            wait_for_writers([tenant_id])
            known = Grant.objects.filter(reference=reference).first() if reference else None
            if known is not None:
                return _same_grant(known, tenant_id, amount_micros, kind, expires_at)
            if expires_at is not None and expires_at <= now:
                raise InvalidInput("the time at which it expires must lie ahead", param="expires_at")
            grant = Grant.objects.create(
                tenant_id=tenant_id,
                kind=kind,
                amount_micros=amount_micros,
                left_picos=amount_micros * PICOS_A_MICRO,
                expires_at=expires_at,
                reason=reason,
                reference=reference,
                created_by=actor[:200],
                created_at=now,
            )
            _enter(grant, BalanceEntry.Kind.GRANT, amount_micros * PICOS_A_MICRO, reason=reason, actor=actor, now=now)
            cover_overdrawn(tenant_id, now=now)
            _audit(tenant_id, actor, "balance.grant", _told(grant))
            tell_balance(tenant_id, now=now)
            return grant
    except IntegrityError:
        # Two at once, of two tenants: those of one wait for each other.
        return _same_grant(Grant.objects.get(reference=reference), tenant_id, amount_micros, kind, expires_at)


def debit_balance(
    *,
    tenant_id: UUID,
    amount_micros: int,
    reason: str,
    actor: str,
    reference: str = "",
    now: datetime | None = None,
    wait_s: float = WAIT_S,
    look: Look = look_at_brain,
) -> Hold:
    """Take credit away, from the grants that usage would use first. Waits at most `wait_s` for what runs.

    Raises InvalidInput, ReferenceUsed, BalanceTooSmall, BalanceBusy: nothing is taken then. Call it outside a transaction.
    """
    return _take(
        tenant_id, None, BalanceEntry.Kind.DEBIT, amount_micros, reason, actor, reference, now=now, wait_s=wait_s, look=look
    )


def refund_credit(
    *,
    tenant_id: UUID,
    grant: Grant,
    amount_micros: int,
    reason: str,
    actor: str,
    reference: str = "",
    now: datetime | None = None,
    wait_s: float = WAIT_S,
    look: Look = look_at_brain,
) -> Hold:
    """Take what was paid in advance out of the balance, because it is paid back. As debit_balance, of this grant alone."""
    if grant.tenant_id != tenant_id or grant.kind != GrantKind.PREPAID:
        raise InvalidInput("only what this organisation paid in advance can be paid back", param="grant")
    return _take(
        tenant_id,
        grant.id,
        BalanceEntry.Kind.REFUND,
        amount_micros,
        reason,
        actor,
        reference,
        now=now,
        wait_s=wait_s,
        look=look,
    )


def _take(
    tenant_id: UUID,
    grant_id: UUID | None,
    kind: BalanceEntry.Kind,
    amount_micros: int,
    reason: str,
    actor: str,
    reference: str,
    *,
    now: datetime | None,
    wait_s: float,
    look: Look,
) -> Hold:
    now = now or datetime.now(UTC)
    _check(tenant_id, amount_micros, reason, reference)
    hold, change_id = set_aside(
        tenant_id=tenant_id,
        kind=kind,
        amount_micros=amount_micros,
        grant_id=grant_id,
        reason=reason,
        actor=actor,
        reference=reference,
        now=now,
    )
    if change_id is None:
        return hold  # done before, with this reference
    why_not = wait_until_counted(tenant_id, change_id, wait_s=wait_s, look=look)
    with transaction.atomic():
        wait_for_writers([tenant_id])
        if not why_not and take_hold(hold, now=now):
            after: dict[str, object] = {"amount_usd": micros_to_usd(amount_micros), "reason": reason, "reference": reference}
            _audit(tenant_id, actor, f"balance.{kind}", after)
            tell_balance(tenant_id, now=now)
            return hold
        if release_hold(hold, now=now):
            cover_overdrawn(tenant_id, now=now)
            tell_balance(tenant_id, now=now)
    raise BalanceBusy(f"nothing was taken: {why_not or 'it took too long'}. Try again.")


def release_stale_holds(now: datetime | None = None) -> int:
    """Give back what those have set aside who died before they took it. Returns how many."""
    now, released = now or datetime.now(UTC), 0
    open_states = (Hold.State.ASKED, Hold.State.HELD)
    for hold in Hold.objects.filter(state__in=open_states, created_at__lt=now - STALE_HOLD).order_by("created_at"):
        with transaction.atomic():
            wait_for_writers([hold.tenant_id])
            if release_hold(hold, now=now):
                released += 1
                cover_overdrawn(hold.tenant_id, now=now)
                tell_balance(hold.tenant_id, now=now)
    return released


def expire_grants(now: datetime | None = None, *, wait_s: float = SWEEP_WAIT_S, look: Look = look_at_brain) -> int:
    """Take away what is left of grants that are over. Returns of how many.

    From their instant no new request uses them, here and at the dispatcher; what had begun before may, so they stay for
    EXPIRED_USE_COMES_WITHIN, and until what runs of one who pays in advance fits into the rest.
    """
    now, ended = now or datetime.now(UTC), 0
    over = Grant.objects.filter(ended_at=None, expires_at__lte=now - EXPIRED_USE_COMES_WITHIN)
    tenant_ids = sorted(set(over.values_list("tenant_id", flat=True)))
    prepaid = prepaid_among(tenant_ids)
    for tenant_id in tenant_ids:
        if tenant_id in prepaid:
            with transaction.atomic():
                wait_for_writers([tenant_id])
                change_id = tell_balance(tenant_id, now=now)
            if wait_until_counted(tenant_id, change_id, wait_s=wait_s, look=look):
                continue
        with transaction.atomic():
            wait_for_writers([tenant_id])
            for grant in over.filter(tenant_id=tenant_id).order_by("id"):
                ended += _end(grant, now)
            tell_balance(tenant_id, now=now)
    return ended


def cover_overdrawn(tenant_id: UUID, *, now: datetime) -> None:
    """New credit pays first what none had covered, on the statement of the month that runs. Call it before telling."""
    account = Account(open_balance(tenant_id), eating_order([tenant_id]), is_prepaid=True, now=now)
    if account.balance.overdrawn_picos:
        zone = time_zones([tenant_id]).get(tenant_id, UTC_NAME)
        account.cover_overdrawn(open_month(tenant_id, now, zone, now=now))
        account.write()


def _end(grant: Grant, now: datetime) -> bool:
    """False: somebody else has, or a hold has some of it."""
    if grant.held_picos or not Grant.objects.filter(id=grant.id, ended_at=None).update(ended_at=now, left_picos=0):
        return False
    if grant.left_picos:
        _enter(grant, BalanceEntry.Kind.EXPIRY, -grant.left_picos, reason="expired", actor="system", now=now)
    return True


def _enter(grant: Grant, kind: BalanceEntry.Kind, picos: int, *, reason: str, actor: str, now: datetime) -> None:
    BalanceEntry.objects.create(
        tenant_id=grant.tenant_id, grant=grant, kind=kind, amount_picos=picos, reason=reason, actor=actor[:200], created_at=now
    )


def _same_grant(grant: Grant, tenant_id: UUID, amount_micros: int, kind: str, expires_at: datetime | None) -> Grant:
    """What was granted is the same, whatever words were given with it."""
    granted = (grant.tenant_id, grant.amount_micros, grant.kind, grant.expires_at)
    if granted != (tenant_id, amount_micros, kind, expires_at):
        raise ReferenceUsed(f"the reference {grant.reference!r} was used for another grant", param="reference")
    return grant


def _check(tenant_id: UUID, amount_micros: int, reason: str, reference: str) -> None:
    if tenant_with_id(tenant_id) is None:
        raise UnknownTenant(f"there is no tenant {tenant_id}")
    if not 1 <= amount_micros <= MAX_GRANT_MICROS:
        raise InvalidInput(f"an amount is above 0 and at most {micros_to_usd(MAX_GRANT_MICROS)} US dollars", param="amount")
    if not reason.strip() or len(reason) > MAX_REASON_CHARS:
        raise InvalidInput(f"say why, in at most {MAX_REASON_CHARS} characters", param="reason")
    if len(reference) > MAX_REFERENCE_CHARS:
        raise InvalidInput(f"a reference has at most {MAX_REFERENCE_CHARS} characters", param="reference")


def _audit(tenant_id: UUID, actor: str, action: str, after: dict[str, object]) -> None:
    tenant = tenant_with_id(tenant_id)
    record_audit(actor=actor, action=action, target=tenant.name if tenant else str(tenant_id), tenant=tenant, after=after)


def _told(grant: Grant) -> dict[str, object]:
    return {
        "grant": str(grant.id),
        "amount_usd": micros_to_usd(grant.amount_micros),
        "kind": grant.kind,
        "reason": grant.reason,
        "reference": grant.reference,
        "expires_at": grant.expires_at.isoformat() if grant.expires_at else None,
    }
