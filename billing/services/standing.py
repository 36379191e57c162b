"""Which of rows that each hold from a time on is in force: of its scope, the newest that has begun."""

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

from django.db.models import Case, CharField, Exists, OuterRef, QuerySet, Value, When

IN_FORCE, COMING, PAST = "in force", "coming", "past"
STANDINGS = (IN_FORCE, COMING, PAST)


def with_standing(rows: QuerySet[Any], scope: Sequence[str], at: date | datetime) -> QuerySet[Any]:
    """Each with `standing`, one of STANDINGS. `scope`: the fields that rows which follow each other share."""
    same = {name: OuterRef(name) for name in scope}
    newer = rows.model._default_manager.filter(
        **same, effective_from__gt=OuterRef("effective_from"), effective_from__lte=at
    ).order_by()
    standing = Case(
        When(effective_from__gt=at, then=Value(COMING)),
        When(Exists(newer), then=Value(PAST)),
        default=Value(IN_FORCE),
        output_field=CharField(),
    )
    found: QuerySet[Any] = rows.annotate(standing=standing)
    return found
