"""One page of a list, cut by the database: by a key that grows (long lists that grow at their head), or by number."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Q, QuerySet

SIZE = 50
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER = re.compile(r"\d{1,17}", re.ASCII)


@dataclass(frozen=True)
class Page:
    rows: list[Any]
    newer: str = ""
    older: str = ""
    shown_text: str = ""


def by_id(rows: QuerySet[Any], cursor: str, *, size: int = SIZE) -> Page:
    """Newest first. `cursor`: "before-<id>", "after-<id>"; anything else is the first page."""
    way, _, text = cursor.partition("-")
    pivot = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
    if way == "after" and pivot is not None:
        found = list(rows.filter(id__gt=pivot).order_by("id")[: size + 1])
        has_newer, has_older = len(found) > size, True
        found = found[:size][::-1]
    else:
        has_newer = way == "before" and pivot is not None
        bounded = rows.filter(id__lt=pivot) if has_newer else rows
        found = list(bounded.order_by("-id")[: size + 1])
        has_older = len(found) > size
        found = found[:size]
    return Page(
        rows=found,
        newer=f"after-{found[0].id}" if found and has_newer else "",
        older=f"before-{found[-1].id}" if found and has_older else "",
        shown_text=f"{len(found)} shown, newest first" if found else "",
    )


def by_time(rows: QuerySet[Any], field: str, cursor: str, *, size: int = SIZE) -> Page:
    """Newest first by `field`, and by id where times are equal: for lists that have an index of time.

    `cursor`: "before-<microseconds>-<id>", "after-..."; anything else is the first page.
    """
    way, pivot = _time_cursor(cursor)
    if way == "after" and pivot is not None:
        at, row_id = pivot
        later = Q(**{f"{field}__gt": at}) | Q(**{field: at, "id__gt": row_id})
        found = list(rows.filter(later, **{f"{field}__gte": at}).order_by(field, "id")[: size + 1])
        has_newer, has_older = len(found) > size, True
        found = found[:size][::-1]
    else:
        has_newer = way == "before" and pivot is not None
        if pivot is not None:
            at, row_id = pivot
            earlier = Q(**{f"{field}__lt": at}) | Q(**{field: at, "id__lt": row_id})
            rows = rows.filter(earlier, **{f"{field}__lte": at})
        found = list(rows.order_by(f"-{field}", "-id")[: size + 1])
        has_older = len(found) > size
        found = found[:size]
    return Page(
        rows=found,
        newer=f"after-{_micros(found[0], field)}" if found and has_newer else "",
        older=f"before-{_micros(found[-1], field)}" if found and has_older else "",
        shown_text=f"{len(found)} shown, newest first" if found else "",
    )


def _micros(row: Any, field: str) -> str:
    return f"{(getattr(row, field) - EPOCH) // timedelta(microseconds=1)}-{row.id}"


def _time_cursor(cursor: str) -> tuple[str, tuple[datetime, int] | None]:
    way, _, rest = cursor.partition("-")
    micros, _, row_id = rest.partition("-")
    if way not in {"before", "after"} or not all(_NUMBER.fullmatch(text) for text in (micros, row_id)):
        return "", None
    return way, (EPOCH + timedelta(microseconds=int(micros)), int(row_id))


def by_number(rows: QuerySet[Any], number: str, *, size: int = SIZE) -> Page:
    """`number` counts from 1; anything else is the first page."""
    page = int(number) if number.isascii() and number.isdigit() and len(number) < 6 else 1
    page = max(1, page)
    start = (page - 1) * size
    found = list(rows[start : start + size + 1])
    shown = found[:size]
    return Page(
        rows=shown,
        newer=str(page - 1) if page > 1 else "",
        older=str(page + 1) if len(found) > size else "",
        shown_text=f"{start + 1} to {start + len(shown)}" if shown else "",
    )
