"""The fleet in a browser: a zone is drained by clicks, its report comes by itself, and pages are accessible.

Nodes and replicas are rows here (real engines: tests/chaos/test_two_nodes.py); the test does what their agents would do.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Person, Site
from tests.browser.test_accessibility import MODES, in_each_mode, overflow, violations

SET_UP = """
from datetime import timedelta
from django.utils import timezone
from inference.fleet_models import ReplicaLoad
from inference.models import NodeHeartbeat, Replica
from tenants.services.members import ensure_operator
from tests.inference.services.fleet import node, pool_of, serving
ensure_operator(username="fleet-operator", password="x")
node("n1", zone="north")
node("s1", zone="south")
NodeHeartbeat.objects.update(seen_at=timezone.now() + timedelta(hours=1))  # alive for the whole test
replicas = serving(pool_of("fleet-model"), 2)
later = timezone.now() + timedelta(hours=1)
for replica in replicas:
    ReplicaLoad.objects.create(replica=replica.id, epoch=0, running=2, kv_used_ratio=0.2, at=later)
out = [replica.id for replica in replicas if replica.zone == "north"][0]
"""
TEAR_DOWN = """
from inference.fleet_models import ReplicaLoad, ZoneDrain
from inference.models import ControlChange, Model, NodeHeartbeat, Pool, Replica
from inference.services import control
for replica in Replica.objects.filter(pool__model__public_id="fleet-model"):
    control.publish_now(kind="replica", key=replica.id, payload=None)
control.publish_now(kind="model", key="fleet-model", payload=None)
Replica.objects.filter(pool__model__public_id="fleet-model").delete()
Pool.objects.filter(model__public_id="fleet-model").update(version=None)
Pool.objects.filter(model__public_id="fleet-model").delete()
model = Model.objects.get(public_id="fleet-model")
model.versions.all().delete()
model.delete()
for rows in (ReplicaLoad, ZoneDrain, NodeHeartbeat):
    rows.objects.all().delete()
"""
AGENTS_DO_IT = """
from datetime import timedelta
from inference.fleet_models import ZoneDrain
from inference.models import Replica
from inference.services.fleet_sweep import look_after_fleet
from inference.services.zones import LEDGER_LAG
from tests.inference.services.fleet import now_serves, stopped
drain = ZoneDrain.objects.get(ended_at=None)
for replica in Replica.objects.filter(zone="south", state="requested"):
    now_serves(replica.id)
look_after_fleet()
stopped(*Replica.objects.filter(zone="north", is_wanted=False).values_list("id", flat=True))
look_after_fleet()
ZoneDrain.objects.filter(pk=drain.pk).update(emptied_at=drain.started_at - LEDGER_LAG)
look_after_fleet()
"""


@pytest.fixture
def replica(site: Site) -> Iterator[str]:
    """The one in the zone north."""
    yield str(site.shell(SET_UP))
    site.shell(TEAR_DOWN)


def test_a_zone_is_drained_by_clicks_and_its_report_comes_by_itself(
    site: Site, replica: str, open_browser: Callable[..., Person]
) -> None:
    page = open_browser("fleet-operator").page
    page.goto("/operator/fleet/")
    expect(page.get_by_role("link", name=replica)).to_be_visible()
    page.get_by_role("link", name="north", exact=True).click()
    expect(page.get_by_text("the others can carry it")).to_be_visible()
    page.get_by_role("button", name="Drain", exact=True).click()
    confirm = page.get_by_role("button", name="Drain the zone")
    expect(confirm).to_be_disabled()
    page.get_by_label(re.compile("^Type")).fill("north")
    confirm.click()
    expect(page.locator("#toasts")).to_contain_text("Zone north is being emptied")
    expect(page.get_by_role("heading", name="Being drained by operator:fleet-operator")).to_be_visible()
    site.shell(AGENTS_DO_IT)
    expect(page.get_by_role("heading", name="Drained by operator:fleet-operator")).to_be_visible(timeout=20_000)
    expect(page.locator("#list")).to_contain_text("clean")
    page.get_by_role("button", name="Let replicas in again").click()
    expect(page.locator("#toasts")).to_contain_text("Zone north takes replicas again")


@in_each_mode
def test_pages_of_the_fleet_are_accessible(site: Site, replica: str, open_browser: Callable[..., Person], mode: str) -> None:
    options: dict[str, Any] = MODES[mode]
    page, problems = open_browser("fleet-operator", **options).page, []
    for address in ("fleet/", "fleet/zones/north/", f"fleet/replicas/{replica}/", "jobs/"):
        page.goto(f"/operator/{address}")
        problems += violations(page) + overflow(page)
    for address, button in (("fleet/zones/north/", "Drain"), (f"fleet/replicas/{replica}/", "Restart")):
        page.goto(f"/operator/{address}")
        page.get_by_role("button", name=button, exact=True).click()
        page.get_by_role("dialog").wait_for()
        problems += violations(page)
    assert not problems, "\n".join(problems)
