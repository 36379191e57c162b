"""Insert usage records without a model instance each: every request ends here, and the ORM costs five times as much."""

import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from django.db import connection

from billing.models import UsageRecord

# Any constant: the first half of our advisory locks' names in PostgreSQL.
USAGE_LOCK_ID = 0x4877

_FIELDS = tuple(field for field in UsageRecord._meta.concrete_fields if not field.primary_key)
_DEFAULTS = {field.attname: field.get_default() for field in _FIELDS}


def insert_new(rows: Sequence[dict[str, Any]], *, recorded_at: datetime) -> None:
    """Those whose request id is not there yet, in one statement each; call it in a transaction.

    `rows`: values by field name; what is missing has the model's default. PostgreSQL says with an error what is wrong with
    a row; SQLite passes over a row that breaks any rule, so the caller looks.
    """
    defaults = {**_DEFAULTS, "recorded_at": recorded_at}
    quoted = ", ".join(connection.ops.quote_name(str(field.column)) for field in _FIELDS)
    places = ", ".join(["%s"] * len(_FIELDS))
    verb, rest = ("INSERT OR IGNORE", "") if connection.vendor == "sqlite" else ("INSERT", " ON CONFLICT DO NOTHING")
    sql = f"{verb} INTO {UsageRecord._meta.db_table} ({quoted}) VALUES ({places}){rest}"
    with connection.cursor() as cursor:
        cursor.executemany(sql, [[_adapted(value) for value in {**defaults, **row}.values()] for row in rows])


def wait_for_writers(tenant_ids: Iterable[uuid.UUID]) -> None:
    """Until the transaction ends, nobody else writes usage of these tenants (on SQLite one who writes is alone anyway).

    So "is this request in the ledger already" has one answer while we look and write, and nothing is added up twice.
    """
    if connection.vendor != "postgresql":
        return
    with connection.cursor() as cursor:
        for number in sorted({tenant_id.int & 0x7FFFFFFF for tenant_id in tenant_ids}):
            cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [USAGE_LOCK_ID, number])


def _adapted(value: Any) -> Any:
    if isinstance(value, datetime):
        return connection.ops.adapt_datetimefield_value(value)
    if isinstance(value, uuid.UUID):
        return value if connection.features.has_native_uuid_field else value.hex
    return value
