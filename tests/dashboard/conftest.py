"""What tests of pages share."""

import time
from types import SimpleNamespace

import pytest
from django_ratelimit import core


@pytest.fixture
def one_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """All posts are counted in the minute in which the test began: another would begin in the middle of some runs."""
    now_s = time.time()
    monkeypatch.setattr(core, "time", SimpleNamespace(time=lambda: now_s))
