"""Billing: who is billed is filled in, a request is on the next invoice; operators price, close, credit. With axe."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import MODEL, Person, Site
from tests.browser.test_accessibility import MODES, in_each_mode, overflow, violations
from tests.browser.test_newcomer import make_key
from tests.e2e.installation import eventually

OPERATOR = """
from tenants.services.members import ensure_operator
ensure_operator(username="money-operator", password="x")
"""


@pytest.fixture(scope="module")
def invoice(site: Site) -> str:
    code = f"from tests.dashboard.furnished import furnish\nout = str(furnish('billed').invoice.number)\n{OPERATOR}"
    return str(site.shell(code))


def reloaded(page: Page, text: str) -> bool:
    page.reload()
    return page.get_by_text(text).count() > 0


def set_price(page: Page, *, input_usd: str, output_usd: str) -> None:
    page.goto("/operator/prices/new/")
    page.get_by_label("Model").select_option(MODEL)
    page.get_by_label("Input", exact=True).fill(input_usd)
    page.get_by_label("Output").fill(output_usd)
    page.get_by_role("button", name="Try it on last month").click()
    expect(page.get_by_text("Nothing is changed yet")).to_be_visible()
    confirm = page.get_by_role("button", name="Set this price")
    expect(confirm).to_be_disabled()
    page.get_by_label(re.compile("^Type")).fill(MODEL)
    confirm.click()
    expect(page.locator("#toasts")).to_contain_text(f"of {MODEL}: gateways know within a second")


def test_a_request_is_on_the_next_invoice_at_the_price_an_operator_set(
    site: Site, tenant: str, invoice: str, open_browser: Callable[..., Person]
) -> None:
    set_price(open_browser("money-operator").page, input_usd="3", output_usd="9")
    page = open_browser(tenant).page
    page.goto(f"/t/{tenant}/billing/")
    expect(page.get_by_text(re.compile(r"Nothing was used in \d{4}-\d\d yet"))).to_be_visible()
    expect(page.get_by_text("IBAN DE02 1203")).to_be_visible()
    page.goto(f"/t/{tenant}/billing/invoices/")
    expect(page.get_by_text(re.compile("First invoice on"))).to_be_visible()
    page.goto(f"/t/{tenant}/")
    key = make_key(page, "backend")

    def is_priced() -> bool:
        assert site.chat(key).status_code == 200
        page.goto(f"/t/{tenant}/billing/")
        return page.get_by_role("cell", name=re.compile(f"{MODEL} · .* · output tokens")).count() > 0

    eventually(is_priced, within_s=30, every_s=1, what="a request is a line of the next invoice")
    expect(page.get_by_role("cell", name="$9.00")).to_be_visible()


def test_who_is_billed_is_filled_in_and_what_is_wrong_is_told_in_place(
    site: Site, tenant: str, open_browser: Callable[..., Person]
) -> None:
    page = open_browser(tenant).page
    page.goto(f"/t/{tenant}/billing/")
    page.get_by_role("button", name="Change").click()
    page.get_by_label("Legal name").fill("Acme SARL")
    page.get_by_label("Address").fill("1 rue de la Paix\n75002 Paris")
    page.get_by_label("Country").select_option("FR")
    page.get_by_label("VAT or tax number").fill("DE1")
    page.get_by_role("button", name="Save details").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("another form")
    expect(page.get_by_label("Legal name")).to_have_value("Acme SARL")
    page.get_by_label("VAT or tax number").fill("FR40303265045")
    page.get_by_role("button", name="Save details").click()
    expect(page.get_by_text("FR40303265045")).to_be_visible()
    expect(page.get_by_role("definition").filter(has_text="75002 Paris")).to_be_visible()


def test_an_invoice_leads_to_its_requests_and_is_downloaded(
    site: Site, invoice: str, open_browser: Callable[..., Person]
) -> None:
    page = open_browser("billed-owner").page
    page.goto("/t/billed/billing/invoices/")
    with page.expect_download() as zipped:
        page.get_by_role("link", name="Download all").click()
    assert zipped.value.suggested_filename == "headway-invoices-billed.zip"
    page.get_by_role("link", name=invoice, exact=True).click()
    with page.expect_download() as pdf:
        page.get_by_role("link", name="PDF", exact=True).click()
    assert pdf.value.suggested_filename == f"{invoice}.pdf"
    page.get_by_role("link", name=re.compile("^3 of ")).first.click()
    expect(page.get_by_text("Its requests add up to it")).to_be_visible()
    page.get_by_role("link", name=re.compile("^req_")).first.click()
    page.get_by_role("heading", name="Receipt").wait_for()


@in_each_mode
def test_operators_pages_of_money_are_accessible(
    site: Site, invoice: str, open_browser: Callable[..., Person], mode: str
) -> None:
    options: dict[str, Any] = MODES[mode]
    page, problems = open_browser("money-operator", **options).page, []
    addresses = ("", "tenants/billed/", "prices/", "prices/new/", "invoices/", f"invoices/{invoice}/", "close/")
    for address in addresses:
        page.goto(f"/operator/{address}")
        problems += violations(page) + overflow(page)
    for address, button in (
        ("tenants/billed/", "Grant credit"),
        (f"invoices/{invoice}/", "Mark paid"),
        (f"invoices/{invoice}/", "Credit note of lines"),
        (f"invoices/{invoice}/", "Take all back"),
    ):
        page.goto(f"/operator/{address}")
        page.get_by_role("button", name=button).click()
        page.get_by_role("dialog").wait_for()
        problems += violations(page)
    assert not problems, "\n".join(problems)
