"""Charts of a pool against its targets, and the table of the same numbers."""

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.views import operator_pools
from inference.services.pool_minutes import note_minutes
from inference.services.pools import set_pool
from inference.services.registry import register_model
from tests.dashboard.operators import client, operator
from tests.dashboard.test_operator_pools import ASKED, text_of
from tests.inference.services.scaled_pool import SPEC, all_ready, have, pool, scaled_pool, shown_busy

__all__ = ["client", "operator"]  # fixtures
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def one_that_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_pools, "brain_seen_now", lambda: None)
    scaled_pool()
    have(1)
    all_ready()


def charts(client: Client, query: str = "") -> dict[str, dict[str, Any]]:
    """By title, what charts.js is given."""
    page = client.get(f"/operator/pools/{query}").content.decode()
    titles = dict(re.findall(r'<h3 id="(chart-[\w-]+)-title"[^>]*>([^<]+)</h3>', page))
    found = re.findall(r'<script id="(chart-[\w-]+)" type="application/json">(.*?)</script>', page)
    return {titles[name]: json.loads(data) for name, data in found}


def line(chart: dict[str, Any], name: str) -> list[float | None]:
    (found,) = [each for each in chart["series"] if each["name"] == name]
    values: list[float | None] = found["values"]
    return values


def test_each_measure_is_drawn_against_its_target(client: Client) -> None:
    set_pool(public_id="m", changes={"interactive_ttft_ms": 400}, actor="test")
    note_minutes(shown=shown_busy(ttft_s=0.75, waiting=6))
    found = charts(client)
    assert list(found) == [
        "First token, interactive",
        "First token, standard",
        "Between tokens",
        "Waiting, by tier",
        "Batch cap and requests running",
        "Fairness between tenants",
    ], "of batch nothing was asked"
    first = found["First token, interactive"]
    assert (line(first, "median")[-1], set(line(first, "target"))) == (750.0, {400.0})
    assert [each["is_target"] for each in first["series"]] == [False, True]
    assert line(found["Waiting, by tier"], "interactive")[-1] == 6
    assert line(found["Batch cap and requests running"], "batch cap")[-1] == 16
    assert line(found["Batch cap and requests running"], "running")[-1] == 3
    assert line(found["Fairness between tenants"], "Jain index")[-1] == 0.987
    assert all(len(each["values"]) == len(chart["times"]) == 60 for chart in found.values() for each in chart["series"])


def test_the_table_says_what_the_charts_draw_and_no_gap_is_a_zero(client: Client) -> None:
    now = timezone.now()
    note_minutes(shown=shown_busy(ttft_s=0.75), now=now - timedelta(minutes=30))
    note_minutes(shown=shown_busy(ttft_s=0.25), now=now)
    text = text_of(client.get("/operator/pools/"))
    newest, older = (f"{at:%Y-%m-%d %H:%M}" for at in (now, now - timedelta(minutes=30)))
    assert re.search(f"{newest} 250 ms 200 ms – 2 0 0 16.0 3.0 0.987 {older} 750 ms", text)
    values = line(charts(client)["First token, interactive"], "median")
    assert [value for value in values if value is not None] == [750.0, 250.0] and 0 not in values


def test_a_day_is_drawn_in_quarters_of_an_hour(client: Client) -> None:
    note_minutes(shown=shown_busy(ttft_s=0.75), now=timezone.now() - timedelta(hours=23))
    assert not charts(client), "of the last hour nothing is known"
    assert "Nothing was seen of m in this time" in text_of(client.get("/operator/pools/?range=hour"))
    chart = charts(client, "?range=day")["First token, interactive"]
    assert len(chart["times"]) == 96 and chart["step_s"] == 900 and all(at % 900 == 0 for at in chart["times"])
    assert 750.0 in line(chart, "median")[:5]


def test_the_pool_is_chosen_and_what_is_no_pool_is_the_first(client: Client) -> None:
    register_model(public_id="another", actor="test", version=SPEC)
    note_minutes(shown=shown_busy())
    assert charts(client, f"?pool={pool().id}")
    for query in ("", "?pool=x", "?pool=999999999999999999999", "?range=century"):
        assert "Nothing was seen of another in this time" in text_of(client.get(f"/operator/pools/{query}")), query


def test_a_refused_form_looks_again_at_an_address_that_can_be_got(client: Client) -> None:
    """What was posted to is not."""
    note_minutes(shown=shown_busy())
    response = client.post(f"/operator/pools/{pool().id}/", {"is_autoscaled": "on", **ASKED, "min_replicas": 5})
    assert response.status_code == 400
    addresses = set(re.findall(r'hx-get="([^"?]*)', response.content.decode()))
    assert addresses == {"/operator/pools/"}
