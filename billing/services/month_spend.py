"""What has been spent in each month: changed with the ledger, told to the data plane with it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from django.db import connection
from django.db.models import F

from billing.models import MonthSpend
from billing.services.credit_account import Use
from billing.services.credit_use import CreditSums
from headway.months import UTC_NAME, month_named
from inference.services import control
from tenants.selectors import budgeted


@dataclass(frozen=True, slots=True)
class Spent:
    """What a usage record, or an adjustment, says of money."""

    tenant_id: UUID
    key_id: str
    model: str
    month: str
    """The billing month."""
    amount_picos: int
    began_at: datetime | None = None
    """Of the request; None: it is of an adjustment."""
    corrected_month: str = ""
    """The billing month of the record that an adjustment corrects; blank: of none."""


class _Row(NamedTuple):
    tenant_id: UUID
    month: str
    key_id: str = ""
    model: str = ""


class MonthSums:
    """Amounts to be added, in one transaction: `hold` all there may be, `add` what is found to be new, `write`."""

    def __init__(self, zones: Mapping[UUID, str], *, now: datetime | None = None) -> None:
        """`zones`: the tenants' time zones."""
        self._zones = zones
        self._credit = CreditSums(now=now)
        self._sums: Counter[_Row] = Counter()
        self._raised: Counter[_Row] = Counter()
        self._lowered: Counter[_Row] = Counter()

    def hold(self, all_spent: Iterable[Spent]) -> None:
        """Make their rows, and lock those of the tenants: others who write records of them wait for our end.

        So "is this request in the ledger already" has one answer while we look and write, and no amount is added twice.
        On SQLite a transaction that writes is alone anyway.
        """
        rows = sorted({row for spent in all_spent if spent.amount_picos for row in self._rows(spent)})
        if not rows:
            return
        MonthSpend.objects.bulk_create([MonthSpend(**row._asdict()) for row in rows], ignore_conflicts=True)
        if connection.vendor == "postgresql":
            whole = MonthSpend.objects.filter(tenant_id__in={row.tenant_id for row in rows}, key_id="", model="")
            list(whole.select_for_update().order_by("tenant_id", "month").values_list("id"))

    def add(self, spent: Spent) -> None:
        """A record that is new, or an adjustment."""
        if not spent.amount_picos:
            return
        for row in self._rows(spent):
            self._sums[row] += spent.amount_picos
            if spent.began_at is None:
                changed = self._raised if spent.amount_picos > 0 else self._lowered
                changed[row] += abs(spent.amount_picos)
        self._use(spent, spent.amount_picos)

    def replace(self, before: Spent, after: Spent) -> None:
        """A final record takes the place of what the dispatcher thought, and has counted: what it costs less is told it."""
        more: Counter[_Row] = Counter()
        for spent, sign in ((before, -1), (after, 1)):
            for row in self._rows(spent):
                more[row] += sign * spent.amount_picos
            self._use(spent, sign * spent.amount_picos)
        for row, picos in more.items():
            self._sums[row] += picos
            self._lowered[row] += max(0, -picos)

    def write(self) -> None:
        """Rows in one order, so that two who write do not wait for each other in a ring; telling comes last."""
        for row in sorted(self._sums):
            MonthSpend.objects.filter(**row._asdict()).update(
                amount_picos=F("amount_picos") + self._sums[row],
                raised_picos=F("raised_picos") + self._raised[row],
                lowered_picos=F("lowered_picos") + self._lowered[row],
            )
        self._credit.write()
        for tenant_id in sorted({row.tenant_id for row in self._sums}):
            tell_month(tenant_id, self._zones.get(tenant_id, UTC_NAME))
        self._credit.tell()

    def _use(self, spent: Spent, picos: int) -> None:
        if picos:
            self._credit.add(spent.tenant_id, Use(spent.month, picos, spent.began_at, spent.corrected_month))

    def _rows(self, spent: Spent) -> set[_Row]:
        """Goodwill for nothing has neither a key nor a model: only the whole tenant's row."""
        tenant_id, month = spent.tenant_id, spent.month
        return {_Row(tenant_id, month), _Row(tenant_id, month, spent.key_id), _Row(tenant_id, month, model=spent.model)}


def tell_month(tenant_id: UUID, time_zone: str) -> None:
    """Publish the tenant's newest month: of it all, and of the keys and models that have a budget.

    What is still added to an older month is in nobody's budget any more. Call it last in a transaction.
    """
    whole = MonthSpend.objects.filter(tenant_id=tenant_id, key_id="", model="").order_by("-month").first()
    if whole is None:
        return
    keys, models = budgeted(tenant_id)
    rows = MonthSpend.objects.filter(tenant_id=tenant_id, month=whole.month)
    named = {key_id for line in keys.values() for key_id in line}
    of_keys = {row.key_id: row for row in rows.filter(key_id__in=named)} if named else {}
    of_models = {row.model: row for row in rows.filter(model__in=models)} if models else {}
    sums_of_keys = {key: _added([of_keys[each] for each in line if each in of_keys]) for key, line in keys.items()}
    sums_of_models = {model: _added([row]) for model, row in of_models.items()}
    spent, raised, lowered = _added([whole])
    payload = {
        "month": whole.month,
        "ends_at": month_named(whole.month, time_zone).ends_s,
        # As text: the sums may be more than 64 bits hold, and what carries this on has no greater numbers.
        "spent_picos": str(spent),
        "raised_picos": str(raised),
        "lowered_picos": str(lowered),
        "keys": {key: str(sums[0]) for key, sums in sums_of_keys.items() if of_keys.keys() & set(keys[key])},
        "models": {model: str(sums[0]) for model, sums in sums_of_models.items()},
        "key_changes": _changes(sums_of_keys),
        "model_changes": _changes(sums_of_models),
    }
    control.publish_figure(kind="month", key=str(tenant_id), payload=payload)


def _added(rows: list[MonthSpend]) -> tuple[int, int, int]:
    """What was spent, and what corrections have added and taken off of it."""
    names = ("amount_picos", "raised_picos", "lowered_picos")
    spent, raised, lowered = (sum(getattr(row, name) for row in rows) for name in names)
    return spent, raised, lowered


def _changes(sums: Mapping[str, tuple[int, int, int]]) -> dict[str, list[str]]:
    """As text, where there are any."""
    return {name: [str(raised), str(lowered)] for name, (_, raised, lowered) in sums.items() if raised or lowered}
