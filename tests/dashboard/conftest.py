"""What tests of pages share."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from django_ratelimit import core

# Of the pages, those that add rows up themselves, or are asked by several at once.
_OF_A_DATABASE = frozenset({"test_metrics.py", "test_operator_reports.py", "test_pool_charts.py", "test_usage_page.py"})


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Pages are tested on one database: what they ask for comes from services, which are tested on both, and the browser's
    ring meets them on PostgreSQL."""
    for item in items:
        marked = item.get_closest_marker("django_db")
        is_alone = marked is None or not marked.kwargs.get("transaction")
        if item.path.parent == Path(__file__).parent and item.path.name not in _OF_A_DATABASE and is_alone:
            item.add_marker("any_database")


@pytest.fixture
def one_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """All posts are counted in the minute in which the test began: another would begin in the middle of some runs."""
    now_s = time.time()
    monkeypatch.setattr(core, "time", SimpleNamespace(time=lambda: now_s))
