"""Operators set rates and costs, and rate a span again, in a browser: by hand and by keyboard. With axe."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Person, Site
from tests.browser.test_accessibility import MODES, in_each_mode, overflow, violations

MODEL = "of-re-ratings"
SETUP = f"""
from datetime import UTC, date, datetime
from billing.services.gpu_costs import set_gpu_cost
from billing.services.ledger import record_usage
from billing.services.rates import set_exchange_rate, set_tax_rate
from billing.services.re_rating import Span
from billing.services.re_rating_runs import re_rate
from inference.services.registry import register_model
from inference.services.version_spec import VersionSpec
from tenants.services.members import ensure_operator
from tests.billing.priced_usage import price, used
from tests.tenants.cast import tenant_with
ensure_operator(username="rates-operator", password="x")
register_model(public_id={MODEL!r}, actor="test", version=VersionSpec(weights_uri="/w", engine_environment="e"))
tenant, at = tenant_with("rated-again"), datetime(2026, 8, 15, tzinfo=UTC)
prices = [price(number, micros, 0, 0, model={MODEL!r}) for number, micros in ((1, 5 * 10**6), (2, 3 * 10**6), (3, 10**6))]
record_usage(drafts=[used(tenant, f"rated-{{each}}", at, tokens=(10**6, 0, 0), price=prices[0]) for each in range(3)], now=at)
for day, percent in ((date(2025, 1, 1), "18"), (date(2026, 1, 1), "19"), (date(2999, 1, 1), "20")):
    set_tax_rate(country="AT", name="USt", percent=percent, effective_from=day, actor="test")
set_exchange_rate(currency="CHF", units_per_usd="0.88", effective_from=date(2026, 1, 1), actor="test")
later = datetime(2999, 1, 1, tzinfo=UTC)
set_gpu_cost(cost_micros=2_500_000, effective_from=later, machine_kind="A kind of machine", actor="test")
span = Span({MODEL!r}, 3, at.replace(month=7), at.replace(month=7, day=16))
re_rate(span=span, reason="nobody used it then", actor="cli:ann", reference="TICKET-1")
"""
WORKER = """
from workers.effects import EFFECTS
from workers.models import OutboxEntry
from workers.services.outbox import carry_out
out = [carry_out(entry.id, EFFECTS) for entry in OutboxEntry.objects.filter(kind="re_rating", done_at=None)]
"""


@pytest.fixture(scope="module", autouse=True)
def rates(site: Site) -> None:
    site.shell(SETUP)


def test_an_operator_sets_a_tax_rate_an_exchange_rate_and_a_cost(site: Site, open_browser: Callable[..., Person]) -> None:
    page = open_browser("rates-operator").page
    page.goto("/operator/")
    page.get_by_role("link", name="Rates and costs").click()
    _tax_by_keyboard(page)
    page.get_by_role("link", name="Exchange rates").click()
    page.get_by_role("link", name="New rate").click()
    page.get_by_label("Currency").select_option("CHF")
    page.get_by_label("Units for one US dollar").fill("0,9")
    page.get_by_label("Holds from").fill("2026-06-01")
    page.get_by_role("button", name="Look at it first").click()
    expect(page.get_by_role("alert")).to_contain_text("at most nine decimals")
    page.get_by_label("Units for one US dollar").fill("0.9")
    page.get_by_role("button", name="Look at it first").click()
    expect(page.get_by_text("0.9 (+2.3 %)")).to_be_visible()
    _confirm(page, "CHF", "Set this rate")
    expect(page.get_by_role("region", name="Exchange rates")).to_contain_text("2026-06-01")
    page.get_by_role("link", name="What machines cost").click()
    page.get_by_role("link", name="New cost").click()
    page.get_by_label("Kind of machine").fill("external")
    page.get_by_label("US dollars an hour").fill("1.25")
    page.get_by_role("button", name="Look at it first").click()
    _confirm(page, "external", "Set this cost")
    expect(page.get_by_role("row").filter(has_text="external")).to_contain_text("$1.25")


def _tax_by_keyboard(page: Page) -> None:
    page.get_by_role("link", name="New rate").press("Enter")
    page.get_by_label("Country").focus()
    page.keyboard.type("Germ")
    page.get_by_label("Percent").fill("19")
    page.get_by_label("Holds from").fill("2026-01-01")
    page.get_by_label("Percent").press("Enter")
    expect(page.get_by_text("Nothing is changed yet")).to_be_visible()
    expect(page.get_by_role("heading", name="DE, Germany, VAT")).to_be_visible()
    page.get_by_label(re.compile("^Type")).fill("DE")
    page.get_by_label(re.compile("^Type")).press("Enter")
    expect(page.locator("#toasts")).to_contain_text("DE: 19.00 % is set")
    page.get_by_label("State").select_option("In force")
    expect(page.get_by_role("region", name="Tax rates")).to_contain_text("Austria")
    expect(page.get_by_role("region", name="Tax rates")).not_to_contain_text("18.00 %")
    assert "standing=in+force" in page.url


def _confirm(page: Page, word: str, label: str) -> None:
    button = page.get_by_role("button", name=label)
    expect(button).to_be_disabled()
    page.get_by_label(re.compile("^Type")).fill(word)
    button.click()
    expect(page.locator("#toasts")).to_contain_text(f"{word}: ")


def test_an_operator_tries_a_re_rating_and_a_worker_does_it(site: Site, open_browser: Callable[..., Person]) -> None:
    page = open_browser("rates-operator").page
    page.goto(f"/operator/prices/?model={MODEL}")
    page.get_by_role("link", name=f"Rate again by version 2 of {MODEL}").click()
    page.get_by_label("Requests that ended from, UTC").fill("2026-08-01T00:00")
    page.get_by_label("And before, UTC").fill("2026-09-01T00:00")
    page.get_by_label("Why").fill("the price was wrong")
    page.get_by_role("button", name="Try it").click()
    tried = page.get_by_role("region", name="What it would change")
    expect(tried.get_by_role("row").filter(has_text="rated-again")).to_contain_text("-$6.00")
    page.get_by_label(re.compile("^Type")).fill(MODEL)
    page.get_by_role("button", name="Rate them again").click()
    row = page.get_by_role("row").filter(has_text="the price was wrong")
    expect(row).to_contain_text("waiting")
    site.shell(WORKER)
    # The page looks every three seconds.
    expect(row).to_contain_text("done")
    expect(row).to_contain_text("-$6.00")
    expect(row).to_contain_text("operator:rates-operator")
    expect(page.get_by_role("row").filter(has_text="TICKET-1")).to_contain_text("cli:ann")


@in_each_mode
def test_pages_of_rates_and_re_ratings_are_accessible(site: Site, open_browser: Callable[..., Person], mode: str) -> None:
    options: dict[str, Any] = MODES[mode]
    page, problems = open_browser("rates-operator", **options).page, []
    pages = ["rates/", "rates/exchange/", "rates/machines/", "rates/tax/?q=nowhere", "rates/tax/new/", "rates/machines/new/"]
    pages += ["re-ratings/", "re-ratings/?model=mock", f"re-ratings/new/?model={MODEL}&version=3"]
    for address in pages:
        page.goto(f"/operator/{address}")
        problems += violations(page) + overflow(page)
    page.get_by_label("Requests that ended from, UTC").fill("2026-08-01T00:00")
    page.get_by_label("And before, UTC").fill("2026-09-01T00:00")
    page.get_by_label("Why").fill("only looked at")
    page.get_by_role("button", name="Try it").click()
    expect(page.get_by_text("Nothing is changed yet")).to_be_visible()
    problems += violations(page) + overflow(page)
    page.goto("/operator/rates/tax/new/")
    page.get_by_label("Country").select_option("AT")
    page.get_by_label("Percent").fill("21")
    page.get_by_label("Holds from").fill("2026-06-01")
    page.get_by_role("button", name="Look at it first").click()
    expect(page.get_by_text("Nothing is changed yet")).to_be_visible()
    problems += violations(page) + overflow(page)
    assert not problems, "\n".join(problems)
