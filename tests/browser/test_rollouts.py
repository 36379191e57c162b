"""Releases by clicks: a canary that is promoted, and one that is rolled back by itself while the page is open. With axe.

Engines and traffic are the cast's; the sweep, the services and the pages are the real ones.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Person, Site
from tests.browser.test_accessibility import MODES, in_each_mode, overflow, violations

OPERATOR = """
from tenants.services.members import ensure_operator
ensure_operator(username="release-operator", password="x")
"""
CAST = "from tests.inference.services.rollout_cast import Cast\nfrom inference.rollout_models import Rollout, RolloutState\n"


SHOWN = """
if not Rollout.objects.filter(model__public_id="shown").exists():
    cast = Cast(model="shown")
    cast.until(cast.started(), RolloutState.CANARY, share_ppm=50_000)
    cast.serve("v1", 190)
    cast.serve("v2", 10)
    cast.look()
"""


@pytest.fixture(scope="module")
def operator(site: Site) -> str:
    site.shell(f"{CAST}{OPERATOR}\nfor name in ('good', 'bad'): Cast(model=name)")
    return "release-operator"


def go_on(site: Site, model: str, *lines: str) -> None:
    """Looks of the sweep, with what happens between them."""
    found = f"rollout = Rollout.objects.filter(model__public_id={model!r}).latest('id')"
    site.shell("\n".join((CAST, f"cast = Cast(model={model!r}, is_there=True)", found, *lines)))


def draft(page: Page, model: str) -> None:
    page.goto("/operator/models/")
    page.get_by_role("link", name=model, exact=True).click()
    page.get_by_role("link", name="Release a version").click()
    page.get_by_label("Version", exact=True).select_option("v2")
    page.get_by_label("Shares of the traffic, per cent").fill("5, 50")
    page.get_by_label("Each lasts at least, seconds").fill("0")
    page.get_by_label("Requests of the new version at each, at least").fill("100")
    page.get_by_role("button", name="Make the draft").click()
    expect(page.locator("#toasts")).to_contain_text("nothing has changed yet")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#toasts")).to_contain_text("The rollout begins")


def test_a_canary_is_promoted_by_clicks_and_the_way_back_is_offered(
    site: Site, operator: str, open_browser: Callable[..., Person]
) -> None:
    page = open_browser(operator).page
    draft(page, "good")
    go_on(
        site,
        "good",
        "cast.until(rollout, RolloutState.CANARY, share_ppm=50_000)",
        "cast.serve('v1', 190)",
        "cast.serve('v2', 10)",
    )
    go_on(site, "good", "cast.look()")
    expect(page.get_by_text(re.compile(r"5\.0 % \(.*\) of 200 requests"))).to_be_visible()
    expect(page.get_by_text("insufficient data", exact=True).first).to_be_visible()
    page.get_by_role("button", name="Promote now").click()
    confirm = page.get_by_role("button", name="Promote", exact=True)
    expect(confirm).to_be_disabled()
    page.locator("#promote").get_by_label(re.compile("^Type")).fill("good v1")
    expect(confirm).to_be_disabled()
    page.locator("#promote").get_by_label(re.compile("^Type")).fill("good v2")
    confirm.click()
    expect(page.locator("#toasts")).to_contain_text("good v2 is promoted as soon as")
    go_on(site, "good", "cast.agent()", "cast.until(rollout, RolloutState.PROMOTED)")
    expect(page.locator("#live").get_by_text("promoted", exact=True).first).to_be_visible()
    expect(page.get_by_role("button", name="Roll back")).to_be_visible()
    page.get_by_role("link", name="Rollouts").first.click()
    page.goto("/operator/models/")
    expect(page.get_by_role("row", name=re.compile("^good v2"))).to_be_visible()


def test_a_failing_canary_is_rolled_back_by_itself_while_its_page_is_open(
    site: Site, operator: str, open_browser: Callable[..., Person]
) -> None:
    page = open_browser(operator).page
    draft(page, "bad")
    go_on(site, "bad", "cast.until(rollout, RolloutState.CANARY, share_ppm=50_000)")
    expect(page.get_by_text("5 % of the requests go there").first).to_be_visible()
    go_on(site, "bad", "cast.serve('v1', 400)", "cast.serve('v2', 200, failing=30)", "cast.look()")
    expect(page.get_by_text("rolling back", exact=True).first).to_be_visible()
    row = page.get_by_role("row", name=re.compile("^errors"))
    expect(row).to_contain_text("breach")
    expect(row).to_contain_text("15.00 %")
    go_on(site, "bad", "cast.agent()", "cast.until(rollout, RolloutState.ROLLED_BACK)")
    expect(page.get_by_text("rolled back", exact=True).first).to_be_visible()
    expect(page.get_by_role("button", name="Promote now")).to_have_count(0)


@in_each_mode
def test_the_pages_are_readable(site: Site, operator: str, mode: str, open_browser: Callable[..., Person]) -> None:
    options: dict[str, Any] = MODES[mode]
    page, problems = open_browser(operator, **options).page, []
    shown = "Rollout.objects.filter(model__public_id='shown').latest('id')"
    rollout, model = site.shell(f"{CAST}{SHOWN}\nout = [{shown}.id, {shown}.model_id]")
    for address in (
        "/operator/models/",
        f"/operator/models/{model}/?before=v1&after=v2",
        "/operator/rollouts/",
        f"/operator/rollouts/{rollout}/",
    ):
        page.goto(address)
        problems += violations(page) + overflow(page)
    assert not problems, "\n".join(problems)
