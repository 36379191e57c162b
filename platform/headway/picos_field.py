"""Sums of pico-dollars that live long: more than 64 bits hold."""

from decimal import Decimal
from typing import Any

from django.db.models import BigIntegerField


class PicosField(BigIntegerField):  # type: ignore[type-arg]  # Django has it without its arguments
    """A Python int: `numeric(30, 0)` in PostgreSQL (10^18 dollars), 64 bits in SQLite (nine million dollars).

    A DecimalField would not do: SQLite keeps fifteen digits of it.
    """

    def db_type(self, connection: Any) -> str:
        return "numeric(30, 0)" if connection.vendor == "postgresql" else "bigint"

    def get_internal_type(self) -> str:
        """What is compared with such a sum in a query is in 64 bits."""
        return "BigIntegerField"

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        """As it is: the backend would make 64 bits of it."""
        return value if prepared else self.get_prep_value(value)

    def from_db_value(self, value: Any, _expression: Any, _connection: Any) -> int | None:
        return int(value) if isinstance(value, Decimal) else value
