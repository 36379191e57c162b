"""What usage uses of a tenant's grants: changed with the ledger, in its transaction, and told to the data plane with it.

Everything here is called by one who holds the tenant's usage (`wait_for_writers`). Usage uses the grant that expires soonest
first, then the oldest; one that was over when the request began it does not. What no grant covers is on the invoice; of a
tenant that pays in advance it is kept as overdrawn, which the dispatcher sees to that it never comes to.
"""

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from uuid import UUID

from django.db.models import F

from billing.models import Balance, Grant
from billing.services.credit_account import Account, Use
from inference.services import control
from tenants.selectors import prepaid_among


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
