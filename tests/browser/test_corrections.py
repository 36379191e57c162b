"""Operators correct a request, take credit, compare ledger and engines and close a month in a browser. With axe."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Person, Site
from tests.browser.test_accessibility import MODES, in_each_mode, overflow, violations

SETUP = """
from datetime import UTC, datetime
from billing.models import Reconciliation
from billing.services.balances import grant_credit
from billing.services.ledger import record_usage
from tenants.services.members import ensure_operator
from tests.billing.priced_usage import price, used
from tests.tenants.cast import tenant_with
ensure_operator(username="ledger-operator", password="x")
tenant, at = tenant_with("corrected"), datetime(2026, 8, 15, tzinfo=UTC)
priced = price(1, 10**6, 0, 0, model="of-corrections")
record_usage(drafts=[used(tenant, "req_corrected", at, tokens=(10**6, 0, 0), price=priced)], now=at)
grant_credit(tenant_id=tenant.id, amount_micros=5_000_000, reason="hello", actor="test")
run = Reconciliation.objects.create(started_at=at, finished_at=at, incarnations=1, unexplained_prompt_tokens=7)
run.findings.create(replica="rep-drift", replica_epoch=3, counted_at=at, verdict="unexplained", engine_prompt_tokens=1007,
    low_prompt_tokens=1000, high_prompt_tokens=1000, unexplained_prompt_tokens=7, inconsistent_requests=["req_corrected"],
    causes={"answered": {"count": 1, "low_prompt_tokens": 1000, "high_prompt_tokens": 1000, "low_completion_tokens": 0,
    "high_completion_tokens": 0}})
out = run.id
"""

WORKER = """
from datetime import timedelta
from billing.services import reconcile_runs
from workers.effects import EFFECTS
from workers.models import OutboxEntry
from workers.services.outbox import carry_out
reconcile_runs.SETTLE = timedelta(0)
kinds = ("closing", "reconciliation")
out = [carry_out(entry.id, EFFECTS) for entry in OutboxEntry.objects.filter(kind__in=kinds, done_at=None)]
"""


@pytest.fixture(scope="module")
def run_id(site: Site) -> int:
    return int(site.shell(SETUP))


def test_an_operator_finds_a_drift_corrects_its_request_takes_credit_compares_again_and_closes_the_month(
    site: Site, run_id: int, open_browser: Callable[..., Person]
) -> None:
    page = open_browser("ledger-operator").page
    page.goto(f"/operator/reconciliation/{run_id}/")
    expect(page.get_by_role("region", name="Tokens of rep-drift")).to_contain_text("+7")
    page.get_by_role("link", name="req_corrected").click()
    _correct(page)
    _take_credit(page)
    _compare_again(site, page)
    _close(site, page)


def _correct(page: Page) -> None:
    page.get_by_role("button", name="Correct it").click()
    dialog = page.get_by_role("dialog", name=re.compile("^Correct"))
    dialog.get_by_label("Amount, US dollars").fill("-5")
    dialog.get_by_label("Why").fill("half an answer")
    dialog.get_by_role("button", name="Add it to the ledger").click()
    expect(page.get_by_role("alert")).to_contain_text("no more can be taken off")
    dialog.get_by_label("Amount, US dollars").fill("-0.25")
    dialog.get_by_role("button", name="Add it to the ledger").click()
    expect(page.locator("#toasts")).to_contain_text("It is on the statement of 2026-08")
    expect(page.get_by_role("definition").filter(has_text=re.compile(r"^\$0\.75$"))).to_be_visible()
    expect(page.get_by_role("region", name="Adjustments")).to_contain_text("half an answer")


def _take_credit(page: Page) -> None:
    page.goto("/operator/tenants/corrected/")
    page.get_by_role("button", name="Take credit").click()
    dialog = page.get_by_role("dialog", name=re.compile("^Take credit"))
    dialog.get_by_label("Amount, US dollars").fill("1.5")
    dialog.get_by_label("Why").fill("granted by mistake")
    confirm = dialog.get_by_role("button", name="Take it")
    expect(confirm).to_be_disabled()
    dialog.get_by_label(re.compile("^Type")).fill("corrected")
    confirm.click()
    expect(page.locator("#toasts")).to_contain_text("It is taken from corrected")


def _compare_again(site: Site, page: Page) -> None:
    page.goto("/operator/reconciliation/")
    page.get_by_role("button", name="Run now").click()
    expect(page.locator("#list").get_by_text("running", exact=True)).to_be_visible()
    site.shell(WORKER)
    # The page looks every three seconds.
    expect(page.locator("#list").get_by_text("running", exact=True)).to_have_count(0)
    expect(page.locator("#list").get_by_text("clean", exact=True).first).to_be_visible()


def _close(site: Site, page: Page) -> None:
    page.goto("/operator/close/?month=2026-08")
    page.get_by_role("button", name="Close 2026-08").click()
    page.get_by_label(re.compile("^Type")).fill("2026-08")
    page.get_by_role("button", name="Close the month").click()
    expect(page.get_by_text("Waiting for a worker")).to_be_visible()
    site.shell(WORKER)
    expect(page.get_by_text(re.compile("tenants looked at: 1 closed now|[1-9][0-9]* closed now"))).to_be_visible()
    expect(page.get_by_role("region", name="Tenants of the month")).to_contain_text("closed")


@in_each_mode
def test_pages_of_corrections_are_accessible(site: Site, run_id: int, open_browser: Callable[..., Person], mode: str) -> None:
    options: dict[str, Any] = MODES[mode]
    page, problems = open_browser("ledger-operator", **options).page, []
    pages = (
        "reconciliation/",
        f"reconciliation/{run_id}/",
        "adjustments/",
        "adjustments/?q=req_corrected",
        "adjustments/?q=none",
        "close/?month=2026-08",
    )
    for address in pages:
        page.goto(f"/operator/{address}")
        problems += violations(page) + overflow(page)
    for address, button in (
        ("adjustments/?q=req_corrected", "Correct it"),
        ("adjustments/", "Goodwill for nothing"),
        ("tenants/corrected/", "Take credit"),
    ):
        page.goto(f"/operator/{address}")
        page.get_by_role("button", name=button).click()
        page.get_by_role("dialog").wait_for()
        problems += violations(page)
    assert not problems, "\n".join(problems)
