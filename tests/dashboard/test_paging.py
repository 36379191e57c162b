"""Pages of lists: every row once, whichever way one walks, while rows come in; odd cursors are the first page."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from billing.models import UsageRecord
from billing.services.ledger import record_usage
from dashboard.paging import Page, by_id, by_number, by_time
from tests.inference.gateway.usage_drafts import TENANT_ID, draft

pytestmark = pytest.mark.django_db

SIZE = 4


def rows() -> Any:
    return UsageRecord.objects.filter(tenant_id=TENANT_ID)


def names(page: Page) -> list[str]:
    return [row.request_id for row in page.rows]


@pytest.fixture(autouse=True)
def eleven_records() -> None:
    """Three end at each instant, so that a time alone is no cursor."""
    record_usage(drafts=[draft(f"r{number:02d}", "done", ended_at_s=1_800_000_000.25 + number // 3) for number in range(11)])


@pytest.mark.parametrize("cut", [by_id, lambda rows, cursor, size: by_time(rows, "ended_at", cursor, size=size)])
def test_walking_there_and_back_shows_every_row_once(cut: Any) -> None:
    wanted = [f"r{number:02d}" for number in reversed(range(11))]
    page = cut(rows(), "", size=SIZE)
    assert not page.newer
    seen, pages = names(page), [names(page)]
    while page.older:
        page = cut(rows(), page.older, size=SIZE)
        seen += names(page)
        pages.append(names(page))
    assert seen == wanted
    for expected in reversed(pages[:-1]):
        page = cut(rows(), page.newer, size=SIZE)
        assert names(page) == expected
    assert not page.newer


def test_what_comes_in_meanwhile_moves_no_page() -> None:
    first = by_time(rows(), "ended_at", "", size=SIZE)
    record_usage(drafts=[draft("late", "done", ended_at_s=1_800_000_099.0)])
    second = by_time(rows(), "ended_at", first.older, size=SIZE)
    assert names(second) == ["r06", "r05", "r04", "r03"]
    assert second.newer


@pytest.mark.parametrize(
    "cursor", ["", "x", "before-", "before-1", "after-x-y", "before-9" * 9, "before--1-2", "before-1e3-2", "page"]
)
def test_an_odd_cursor_is_the_first_page(cursor: str) -> None:
    assert names(by_time(rows(), "ended_at", cursor, size=SIZE))[0] == "r10"
    assert names(by_id(rows(), cursor if not cursor.startswith("before-1") else "", size=SIZE))[0] == "r10"


@pytest.mark.parametrize("number", ["", "0", "-1", "x", "1", "٣", "9" * 30])
def test_an_odd_number_is_the_first_page(number: str) -> None:
    page = by_number(rows().order_by("-id"), number, size=SIZE)
    assert (names(page)[0], page.shown_text, page.newer) == ("r10", "1 to 4", "")


def test_the_last_numbered_page_has_no_next() -> None:
    page = by_number(rows().order_by("-id"), "3", size=SIZE)
    assert (len(page.rows), page.older, page.newer, page.shown_text) == (3, "", "2", "9 to 11")


def test_times_are_kept_to_the_microsecond() -> None:
    at = datetime(2027, 1, 15, 8, 0, 0, 123457, tzinfo=UTC)
    UsageRecord.objects.update(ended_at=at - timedelta(microseconds=1))
    UsageRecord.objects.filter(request_id="r05").update(ended_at=at)
    first = by_time(rows(), "ended_at", "", size=1)
    assert names(first) == ["r05"]
    assert names(by_time(rows(), "ended_at", first.older, size=SIZE)) == ["r10", "r09", "r08", "r07"]
