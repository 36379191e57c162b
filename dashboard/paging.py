"""One page of a list, cut by the database: by a key that grows (long lists that grow at their head), or by number."""

from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

SIZE = 50


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
