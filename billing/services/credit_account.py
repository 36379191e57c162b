"""One tenant's balance and grants while uses are taken in: who pays, and who gets back what a correction takes off."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from django.db.models import F

from billing.models import Balance, BalanceEntry, ClosedMonth, Grant, GrantReturn, GrantUse, MonthSpend


@dataclass(frozen=True, slots=True)
class Use:
    """Of one usage record, or of one adjustment."""

    billing_month: str
    amount_picos: int
    """Below zero: given back."""
    began_at: datetime | None
    """Of the request; None: no request, but an adjustment."""
    corrected_month: str = ""
    """The billing month of the record that an adjustment corrects; blank: of none."""


class Paid:
    """What grants have paid, less what was given back of it."""

    def __init__(self, tenant_id: UUID) -> None:
        self.of: Counter[tuple[UUID, str]] = Counter()
        """By grant and the month whose usage it was."""
        self.on: Counter[str] = Counter()
        """By the month on whose statement it is."""
        uses = GrantUse.objects.filter(grant__tenant_id=tenant_id)
        for grant_id, month, picos in uses.values_list("grant_id", "billing_month", "amount_picos"):
            self.add(grant_id, month, month, picos)
        returns = GrantReturn.objects.filter(grant__tenant_id=tenant_id)
        for grant_id, month, paid, picos in returns.values_list("grant_id", "billing_month", "paid_month", "amount_picos"):
            self.add(grant_id, month, paid, -picos)

    def add(self, grant_id: UUID, billing_month: str, paid_month: str, picos: int) -> None:
        self.of[grant_id, paid_month] += picos
        self.on[billing_month] += picos

    def months(self) -> list[str]:
        """Newest first."""
        return sorted({month for _, month in self.of}, reverse=True)


@dataclass
class Account:
    """Nothing is written before `write`."""

    balance: Balance
    grants: list[Grant]
    """That have not ended, as usage uses them."""
    is_prepaid: bool
    now: datetime
    _used: Counter[tuple[UUID, str]] = field(default_factory=Counter)
    _returned: Counter[tuple[UUID, str, str]] = field(default_factory=Counter)
    """By grant, billing month, and the other month that had paid."""
    _over: Counter[UUID] = field(default_factory=Counter)
    """Of grants that have ended: given back, and gone with them."""
    _changed: set[UUID] = field(default_factory=set)
    _paid: Paid | None = None
    """Only read where something is given back."""
    _ended: list[Grant] = field(default_factory=list)

    def take_in(self, uses: list[Use]) -> None:
        """`uses` are in the months' sums already."""
        totals = self._totals_before(uses)
        for use in uses:
            totals[use.billing_month] += use.amount_picos
            if use.began_at is not None:
                self.balance.spent_picos += use.amount_picos
            if use.amount_picos > 0:
                self.use(use.amount_picos, use.billing_month, use.began_at or self.now)
            elif self.is_prepaid:
                self._give_back_in_advance(use, totals[use.billing_month])
            else:
                self._give_back_later(use, totals[use.billing_month])

    def use(self, picos: int, billing_month: str, began_at: datetime) -> None:
        for grant in self.grants:
            if not picos:
                break
            if grant.expires_at is None or began_at < grant.expires_at:
                taken = min(picos, grant.left_picos)
                self._move(grant, billing_month, billing_month, taken)
                picos -= taken
        if self.is_prepaid:
            self.balance.overdrawn_picos += picos

    def cover_overdrawn(self, running_month: str) -> None:
        """By what there is now: on the statements, oldest first, of open months that lack it; the rest on the running one's."""
        picos, self.balance.overdrawn_picos = self.balance.overdrawn_picos, 0
        paid = self._read_paid()
        for month, total_picos in self._open_months():
            part = min(picos, max(0, total_picos - paid.on[month]))
            self.use(part, month, self.now)
            picos -= part
        self.use(picos, running_month, self.now)

    def write(self) -> None:
        for grant in self.grants:
            if grant.id in self._changed:
                Grant.objects.filter(id=grant.id).update(left_picos=grant.left_picos)
        for (grant_id, billing_month), picos in sorted(self._used.items(), key=str):
            if picos:
                _add_use(grant_id, billing_month, picos)
        for (grant_id, billing_month, paid_month), picos in sorted(self._returned.items(), key=str):
            _add_return(grant_id, billing_month, paid_month, picos)
        for grant_id, picos in sorted(self._over.items(), key=str):
            self._enter_gone(grant_id, picos)
        values = {"spent_picos": self.balance.spent_picos, "overdrawn_picos": self.balance.overdrawn_picos}
        Balance.objects.filter(tenant_id=self.balance.tenant_id).update(**values)

    def _give_back_later(self, use: Use, total_picos: int) -> None:
        """Of one who pays later. What was not paid by grants goes first; they get back what is more than the month has cost.

        The rest is carried over to the next invoice, and so is what grants that have ended paid.
        """
        more = self._read_paid().on[use.billing_month] - max(0, total_picos)
        self._return(min(-use.amount_picos, max(0, more)), use.billing_month, [use.billing_month], self.grants)

    def _give_back_in_advance(self, use: Use, total_picos: int) -> None:
        """Of one who pays in advance, whom no invoice would ever give it back: what nothing has covered goes first, then what
        an invoice of the month asks for, and all else goes back to the grants that paid the corrected month.
        """
        picos, month, paid = -use.amount_picos, use.billing_month, self._read_paid()
        uncovered = min(self.balance.overdrawn_picos, picos)
        self.balance.overdrawn_picos -= uncovered
        more = paid.on[month] + self.balance.overdrawn_picos - total_picos
        months = [use.corrected_month or month, month, *paid.months()]
        self._return(min(picos - uncovered, max(0, more)), month, months, [*self._ended, *self.grants])

    def _return(self, picos: int, billing_month: str, months: list[str], grants: list[Grant]) -> None:
        """To each of the grants, the last first, no more than it has paid of the first of the months, then of the next."""
        paid = self._read_paid()
        for month in dict.fromkeys(months):
            for grant in reversed(grants):
                given = min(picos, paid.of[grant.id, month])
                self._move(grant, billing_month, month, -given)
                picos -= given

    def _move(self, grant: Grant, billing_month: str, paid_month: str, picos: int) -> None:
        """Out of the grant; below zero: back to it, off what it paid of `paid_month`, on the statement of `billing_month`."""
        if not picos:
            return
        if paid_month == billing_month:
            self._used[grant.id, billing_month] += picos
        else:
            self._returned[grant.id, billing_month, paid_month] -= picos
        if self._paid is not None:
            self._paid.add(grant.id, billing_month, paid_month, picos)
        if grant.ended_at is None:
            grant.left_picos -= picos
            self._changed.add(grant.id)
        else:
            self._over[grant.id] -= picos

    def _read_paid(self) -> Paid:
        if self._paid is None:
            self._paid = Paid(self.balance.tenant_id)
            for (grant_id, month), picos in self._used.items():
                self._paid.add(grant_id, month, month, picos)
            ended = Grant.objects.filter(id__in={grant_id for grant_id, _ in self._paid.of}).exclude(ended_at=None)
            self._ended = list(ended.order_by("ended_at", "id"))
        return self._paid

    def _enter_gone(self, grant_id: UUID, picos: int) -> None:
        BalanceEntry.objects.create(
            tenant_id=self.balance.tenant_id,
            grant_id=grant_id,
            kind=BalanceEntry.Kind.EXPIRY,
            amount_picos=-picos,
            reason="given back after it had expired",
            actor="system",
            created_at=self.now,
        )

    def _open_months(self) -> list[tuple[str, int]]:
        """With what the whole tenant has spent in each, oldest first."""
        closed = ClosedMonth.objects.filter(tenant_id=self.balance.tenant_id).values("month")
        rows = MonthSpend.objects.filter(tenant_id=self.balance.tenant_id, key_id="", model="").exclude(month__in=closed)
        return list(rows.order_by("month").values_list("month", "amount_picos"))

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


def _add_use(grant_id: UUID, billing_month: str, picos: int) -> None:
    rows = GrantUse.objects.filter(grant_id=grant_id, billing_month=billing_month)
    if not rows.update(amount_picos=F("amount_picos") + picos):
        GrantUse.objects.create(grant_id=grant_id, billing_month=billing_month, amount_picos=picos)


def _add_return(grant_id: UUID, billing_month: str, paid_month: str, picos: int) -> None:
    rows = GrantReturn.objects.filter(grant_id=grant_id, billing_month=billing_month, paid_month=paid_month)
    if not rows.update(amount_picos=F("amount_picos") + picos):
        GrantReturn.objects.create(grant_id=grant_id, billing_month=billing_month, paid_month=paid_month, amount_picos=picos)
