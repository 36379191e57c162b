"""Reports and exports in a browser: filters change chart and address, a worker makes a file that is downloaded. With axe."""

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Person, Site
from tests.browser.test_accessibility import MODES, in_each_mode, overflow, violations

SETUP = """
from datetime import UTC, datetime
from billing.services.gpu_costs import set_gpu_cost
from tenants.services.members import ensure_operator
from tests.dashboard.furnished import furnish
ensure_operator(username="report-operator", password="x")
set_gpu_cost(cost_micros=500_000, effective_from=datetime(2020, 1, 1, tzinfo=UTC), actor="test", machine_kind="external")
furnish("reported")
out = ""
"""

WORKER = """
from workers.effects import EFFECTS
from workers.models import OutboxEntry
from workers.services.outbox import carry_out
out = [carry_out(entry.id, EFFECTS) for entry in OutboxEntry.objects.filter(kind="export", done_at=None)]
"""


@pytest.fixture(scope="module")
def reported(site: Site) -> str:
    site.shell(SETUP)
    return "reported"


def test_a_filter_changes_chart_and_address_and_the_files_follow(
    site: Site, reported: str, open_browser: Callable[..., Person]
) -> None:
    page = open_browser("report-operator").page
    page.goto("/operator/reports/?range=30d")
    expect(page.locator(".plot canvas")).to_be_visible()
    page.locator("select[name=group]").select_option("tenant_model")
    expect(page.get_by_text(f"{reported} · smollm2-135m").first).to_be_visible()
    assert "group=tenant_model" in page.url
    expect(page.locator(".plot canvas")).to_be_visible()
    for name, file in (("CSV", "headway-report.csv"), ("Margins CSV", "headway-margins.csv"), ("PDF", "headway-report.pdf")):
        with page.expect_download() as found:
            page.get_by_role("link", name=name, exact=True).click()
        assert found.value.suggested_filename == file


def test_a_file_is_asked_for_made_and_downloaded(site: Site, reported: str, open_browser: Callable[..., Person]) -> None:
    page = open_browser(f"{reported}-viewer").page
    page.goto(f"/t/{reported}/exports/")
    page.get_by_role("button", name="Make the file").click()
    expect(page.locator("#list").get_by_text("asked", exact=True)).to_be_visible()
    site.shell(WORKER)
    # The page looks every three seconds.
    with page.expect_download() as found:
        page.get_by_role("link", name="Download").click()
    assert found.value.suggested_filename.startswith("headway-requests-")


@in_each_mode
def test_reports_and_exports_are_accessible(site: Site, reported: str, open_browser: Callable[..., Person], mode: str) -> None:
    options: dict[str, Any] = MODES[mode]
    page, problems = open_browser("report-operator", **options).page, []
    empty = "range=custom&from=2020-01-01&to=2020-01-02"
    for address in ("reports/?range=30d", f"reports/?{empty}", "exports/"):
        page.goto(f"/operator/{address}")
        problems += violations(page) + overflow(page)
    page = open_browser(f"{reported}-owner", **options).page
    page.goto(f"/t/{reported}/exports/")
    problems += violations(page) + overflow(page)
    assert not problems, "\n".join(problems)
