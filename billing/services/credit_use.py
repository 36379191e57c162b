"""What usage uses of a tenant's grants: changed with the ledger, in its transaction, and told to the data plane with it.

Everything here is called by one who holds the tenant's usage (`wait_for_writers`). Usage uses the grant that expires soonest
first, then the oldest; one that was over when the request began it does not. What no grant covers is on the invoice; of a
tenant that pays in advance it is kept as overdrawn, which the dispatcher sees to that it never comes to.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

from django.db.models import F

from billing.models import Balance, Grant, GrantUse, MonthSpend
from inference.services import control
from tenants.selectors import prepaid_among


@dataclass(frozen=True, slots=True)
class Use:
    """Of one usage record, or of one adjustment."""

    billing_month: str
    amount_picos: int
    """Below zero: given back."""
    began_at: datetime | None
    """Of the request; None: no request, but an adjustment."""


def eating_order(tenant_ids: Iterable[UUID]) -> list[Grant]:
    """The grants that have not ended, as usage uses them."""
    rows = Grant.objects.filter(tenant_id__in=set(tenant_ids), ended_at=None)
    return list(rows.order_by(F("expires_at").asc(nulls_last=True), "created_at", "id"))


class CreditSums:
    """`add` what is new in the ledger, then `write`: once the month's sums have it."""

    def __init__(self, *, now: datetime | None = None) -> None:
        self._now = now or datetime.now(UTC)
        self._uses: defaultdict[UUID, list[Use]] = defaultdict(list)
        self._prepaid: set[UUID] = set()

    def add(self, tenant_id: UUID, use: Use) -> None:
        self._uses[tenant_id].append(use)

    def write(self) -> None:
        tenant_ids = sorted(self._uses)
        if not tenant_ids:
            return
        self._prepaid = prepaid_among(tenant_ids)
        balances = {balance.tenant_id: balance for balance in Balance.objects.filter(tenant_id__in=tenant_ids)}
        if not balances and not self._prepaid:
            return
        grants: defaultdict[UUID, list[Grant]] = defaultdict(list)
        for grant in eating_order(balances):
            grants[grant.tenant_id].append(grant)
        for tenant_id in tenant_ids:
            if tenant_id in balances or tenant_id in self._prepaid:
                balance = balances.get(tenant_id) or Balance.objects.get_or_create(tenant_id=tenant_id)[0]
                account = Account(balance, grants[tenant_id], is_prepaid=tenant_id in self._prepaid, now=self._now)
                account.take_in(self._uses[tenant_id])
                account.write()

    def tell(self) -> None:
        """Call it last in the transaction."""
        for tenant_id in sorted(self._prepaid):
            tell_balance(tenant_id, now=self._now)


@dataclass
class Account:
    """One tenant's balance and grants while uses are taken in; nothing is written before `write`."""

    balance: Balance
    grants: list[Grant]
    is_prepaid: bool
    now: datetime
    _used: Counter[tuple[UUID, str]] = field(default_factory=Counter)
    _changed: set[UUID] = field(default_factory=set)

    def take_in(self, uses: list[Use]) -> None:
        """`uses` are in the months' sums already."""
        totals = self._totals_before(uses)
        for use in uses:
            totals[use.billing_month] += use.amount_picos
            if use.began_at is not None:
                self.balance.spent_picos += use.amount_picos
            if use.amount_picos > 0:
                self.use(use.amount_picos, use.billing_month, use.began_at or self.now)
            else:
                self._give_back(-use.amount_picos, use.billing_month, totals[use.billing_month])

    def use(self, picos: int, billing_month: str, began_at: datetime) -> None:
        for grant in self.grants:
            if not picos:
                break
            if grant.expires_at is None or began_at < grant.expires_at:
                taken = min(picos, grant.left_picos)
                self._move(grant, billing_month, taken)
                picos -= taken
        if self.is_prepaid:
            self.balance.overdrawn_picos += picos

    def cover_overdrawn(self, billing_month: str) -> None:
        """By what there is now."""
        picos, self.balance.overdrawn_picos = self.balance.overdrawn_picos, 0
        if picos:
            self.use(picos, billing_month, self.now)

    def write(self) -> None:
        for grant in self.grants:
            if grant.id in self._changed:
                Grant.objects.filter(id=grant.id).update(left_picos=grant.left_picos)
        for (grant_id, billing_month), picos in sorted(self._used.items(), key=str):
            if picos:
                _add_use(grant_id, billing_month, picos)
        values = {"spent_picos": self.balance.spent_picos, "overdrawn_picos": self.balance.overdrawn_picos}
        Balance.objects.filter(tenant_id=self.balance.tenant_id).update(**values)

    def _give_back(self, picos: int, billing_month: str, total_picos: int) -> None:
        """What was not paid by grants goes first; they get back what is more than the month has cost."""
        uses = self._uses_of(billing_month)
        back = min(picos, max(0, sum(uses.values()) - max(0, total_picos)))
        if self.is_prepaid:
            self.balance.overdrawn_picos -= min(self.balance.overdrawn_picos, picos - back)
        for grant in reversed(self.grants):
            given = min(back, uses.get(grant.id, 0))
            self._move(grant, billing_month, -given)
            back -= given

    def _move(self, grant: Grant, billing_month: str, picos: int) -> None:
        if picos:
            grant.left_picos -= picos
            self._used[grant.id, billing_month] += picos
            self._changed.add(grant.id)

    def _uses_of(self, billing_month: str) -> Counter[UUID]:
        """Of the grants that have not ended: what one that has ended paid stays paid."""
        rows = GrantUse.objects.filter(grant__in=[grant.id for grant in self.grants], billing_month=billing_month)
        uses: Counter[UUID] = Counter(dict(rows.values_list("grant_id", "amount_picos")))
        for (grant_id, month), picos in self._used.items():
            if month == billing_month:
                uses[grant_id] += picos
        return uses

    def _totals_before(self, uses: list[Use]) -> Counter[str]:
        """Of the whole tenant, by month: only asked for where something is given back."""
        totals: Counter[str] = Counter()
        if all(use.amount_picos > 0 for use in uses):
            return totals
        months = {use.billing_month for use in uses}
        rows = MonthSpend.objects.filter(tenant_id=self.balance.tenant_id, month__in=months, key_id="", model="")
        totals.update(dict(rows.values_list("month", "amount_picos")))
        for use in uses:
            totals[use.billing_month] -= use.amount_picos
        return totals


def open_balance(tenant_id: UUID) -> Balance:
    """The tenant's balance, made when it has none: from now on what it spends is counted."""
    return Balance.objects.get_or_create(tenant_id=tenant_id)[0]


def tell_balance(tenant_id: UUID, *, now: datetime | None = None) -> int:
    """Publish all that it may use and has spent, of all time: the id of the change. Call it last in a transaction."""
    now = now or datetime.now(UTC)
    balance = open_balance(tenant_id)
    usable = [grant for grant in eating_order([tenant_id]) if grant.expires_at is None or grant.expires_at > now]
    left_picos = sum(grant.left_picos for grant in usable)
    expiring = [
        [grant.expires_at.timestamp(), str(grant.left_picos)] for grant in usable if grant.expires_at and grant.left_picos
    ]
    payload = {
        # As text, as the month's: more than 64 bits may hold.
        "credit_picos": str(balance.spent_picos + left_picos - balance.overdrawn_picos),
        "spent_picos": str(balance.spent_picos),
        "expiring": expiring,
    }
    return control.publish_figure(kind="balance", key=str(tenant_id), payload=payload).id


def _add_use(grant_id: UUID, billing_month: str, picos: int) -> None:
    rows = GrantUse.objects.filter(grant_id=grant_id, billing_month=billing_month)
    if not rows.update(amount_picos=F("amount_picos") + picos):
        GrantUse.objects.create(grant_id=grant_id, billing_month=billing_month, amount_picos=picos)
