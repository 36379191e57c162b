"""The rows of each kind of export, read in pieces: after a cursor, so that work goes on where it stopped.

A cursor is what JSON can hold. It names the last row that was there when the rows were counted: later ones are in none.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Protocol
from uuid import UUID

from django.db.models import Max, Q, QuerySet

from billing.models import Adjustment, UsageRecord
from billing.selectors import requests_of_tenant, with_corrections
from headway.money import picos_to_usd
from headway.months import zone_named
from headway.streaming import as_text
from tenants.selectors import keys_of_tenant, names_of_tenants, tenant_with_id
from tenants.services.tickets import PLAYGROUND_KEY_ID

Cursor = dict[str, Any]
Row = list[Any]

_MEASURED = ("prompt_tokens", "cached_tokens", "completion_tokens", "queue_ms", "ttft_ms", "total_ms", "attempts")
_COMMON = ("tenant_id", "request_id", "key_id", "member_id", "model", "version", "tier", "amount_picos", "billing_month")
_USAGE = (*_COMMON, "route", "end_state", "finish_reason", "usage_source", *_MEASURED, "price_version", "discount_percent")
_ADJUSTMENT = (*_COMMON, "kind", "reason", "actor")
_NAMES = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens", "end_state": "ended"}
_REQUEST = ("request_id", "model", "version", "key_id", "member_id", "tier", "route", "end_state", "finish_reason")
_AMOUNTS = ("amount_picos", "corrected_picos")
_REQUEST_FIELDS = ("ended_at", "started_at", *_REQUEST, *_MEASURED, "usage_source", *_AMOUNTS, "id")


class Source(Protocol):
    def head(self) -> Row: ...

    def begin(self) -> tuple[int, Cursor]:
        """How many rows there are, and the cursor before the first."""

    def rows_after(self, cursor: Cursor, limit: int) -> tuple[list[Row], Cursor]:
        """No rows: that was the last of them."""


class LedgerOfMonth:
    """Every record and adjustment with this billing month, of all tenants: records first, in the order of the ledger.

    A month that is closed for every tenant gives the same file whenever it is asked for.
    """

    def __init__(self, asked: dict[str, Any]) -> None:
        self._month: str = asked["month"]

    def head(self) -> Row:
        columns = ["row", "at", "tenant", *_COMMON[:7], "amount_usd", "billing_month", *_USAGE[len(_COMMON) :]]
        return [_NAMES.get(name, name) for name in (*columns, *_ADJUSTMENT[len(_COMMON) :])]

    def begin(self) -> tuple[int, Cursor]:
        until = {name: table.aggregate(last=Max("id"))["last"] or 0 for name, table in self._tables().items()}
        number = sum(table.filter(id__lte=until[name]).count() for name, table in self._tables().items())
        return number, {"table": "usage", "after": 0, "until": until}

    def rows_after(self, cursor: Cursor, limit: int) -> tuple[list[Row], Cursor]:
        name = cursor["table"]
        table = self._tables()[name].filter(id__gt=cursor["after"], id__lte=cursor["until"][name]).order_by("id")
        found = list(table.values("id", "ended_at" if name == "usage" else "usage_at", *self._fields(name))[:limit])
        if found:
            names = names_of_tenants({row["tenant_id"] for row in found})
            return [self._row(name, row, names) for row in found], cursor | {"after": found[-1]["id"]}
        if name == "usage":
            return self.rows_after(cursor | {"table": "adjustment", "after": 0}, limit)
        return [], cursor

    def _tables(self) -> dict[str, QuerySet[Any]]:
        month = {"billing_month": self._month}
        return {"usage": UsageRecord.objects.filter(**month), "adjustment": Adjustment.objects.filter(**month)}

    def _fields(self, name: str) -> tuple[str, ...]:
        return _USAGE if name == "usage" else _ADJUSTMENT

    def _row(self, name: str, row: dict[str, Any], names: dict[UUID, str]) -> Row:
        at = row["ended_at"] if name == "usage" else row["usage_at"]
        first = [name, at.astimezone(UTC).isoformat(), names.get(row["tenant_id"], "")]
        common = [_plain(row[field]) for field in _COMMON[:7]]
        rest = [_plain(row.get(field)) for field in (*_USAGE[len(_COMMON) :], *_ADJUSTMENT[len(_COMMON) :])]
        return [*first, *common, _usd(row["amount_picos"]), row["billing_month"], *rest]


class RequestsOfTenant:
    """What ended in a range of time, oldest first, in the tenant's zone."""

    def __init__(self, tenant_id: UUID, asked: dict[str, Any]) -> None:
        self._zone_name: str = asked["zone"]
        self._zone = zone_named(self._zone_name) or UTC
        self._tenant_id = tenant_id
        named = {name: asked[name] for name in ("model", "key") if asked.get(name)}
        starts_at, ends_at = (datetime.fromisoformat(asked[name]) for name in ("starts_at", "ends_at"))
        self._rows = with_corrections(requests_of_tenant(tenant_id, starts_at=starts_at, ends_at=ends_at, **named))
        self._key_names: dict[str, str] | None = None

    def head(self) -> Row:
        names = [_NAMES.get(name, name) for name in (*_REQUEST, *_MEASURED, "usage_source", "amount_usd")]
        return [f"ended_at ({self._zone_name})", f"started_at ({self._zone_name})", *names, "key_name", "corrections_usd"]

    def begin(self) -> tuple[int, Cursor]:
        last = UsageRecord.objects.aggregate(last=Max("id"))["last"] or 0
        return self._rows.filter(id__lte=last).count(), {"at": "", "after": 0, "until": last}

    def rows_after(self, cursor: Cursor, limit: int) -> tuple[list[Row], Cursor]:
        rows = self._rows.filter(id__lte=cursor["until"]).order_by("ended_at", "id")
        if cursor["at"]:
            at = datetime.fromisoformat(cursor["at"])
            rows = rows.filter(Q(ended_at__gt=at) | Q(ended_at=at, id__gt=cursor["after"]), ended_at__gte=at)
        found = list(rows.values_list(*_REQUEST_FIELDS)[:limit])
        if not found:
            return [], cursor
        return [self._row(row) for row in found], cursor | {"at": found[-1][0].isoformat(), "after": found[-1][-1]}

    def _row(self, row: Sequence[Any]) -> Row:
        ended_at, started_at, *values, picos, corrected, _id = row
        times = [at.astimezone(self._zone).isoformat() for at in (ended_at, started_at)]
        key_name = self._names().get(values[_REQUEST.index("key_id")], "")
        return [*times, *(_plain(value) for value in values), _usd(picos), _plain(key_name), _usd(int(corrected))]

    def _names(self) -> dict[str, str]:
        if self._key_names is None:
            tenant = tenant_with_id(self._tenant_id)
            keys = keys_of_tenant(tenant).select_related(None).values_list("id", "name") if tenant else ()
            self._key_names = {PLAYGROUND_KEY_ID: "playground"} | dict(keys)
        return self._key_names


def _plain(value: Any) -> Any:
    """None is blank; text that a spreadsheet would run as a formula is shown as text."""
    if isinstance(value, str):
        return as_text(value)
    return "" if value is None else value


def _usd(picos: int | None) -> str:
    return "" if picos is None else picos_to_usd(picos)
