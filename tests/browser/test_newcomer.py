"""A stranger's way: sign up, name an organisation, make a key, send a request, stream from the playground."""

import re
import time
from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.browser.conftest import MODEL, Person, Site

EMAIL, PASSWORD = "ada@lovelace.example", "an engine of brass and steam"
MAX_S = 60


def sign_up(page: Page, site: Site, email: str) -> None:
    page.goto("/accounts/signup/")
    page.get_by_label("Email").fill(email)
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_role("button", name="Create account").click()
    expect(page).to_have_url(re.compile("confirm-email"))
    found = re.search(r"^\s*([A-Z0-9]{3,4}-?[A-Z0-9]{3,4})\s*$", site.last_mail(email), re.MULTILINE)
    assert found is not None, site.last_mail(email)
    page.get_by_label("Code").fill(found[1])
    page.locator("form:has([name=code]) button[type=submit]").first.click()


def make_key(page: Page, name: str) -> str:
    page.get_by_role("link", name="API keys", exact=True).click()
    page.get_by_role("link", name=re.compile("Create")).first.click()
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("button", name="Create key").click()
    key = page.locator("#new-key").inner_text()
    assert key.startswith("hw_live_")
    return key


def test_a_stranger_streams_a_token_within_a_minute(site: Site, open_browser: Callable[..., Person]) -> None:
    started_s, page = time.monotonic(), open_browser().page
    page.goto("/")
    page.get_by_role("link", name="Create an account").click()
    sign_up(page, site, EMAIL)
    page.get_by_label("Name of your organisation").fill("analytical")
    page.get_by_role("button", name="Create organisation").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    expect(page.get_by_text("Waiting for your first request")).to_be_visible()

    key = make_key(page, "first")
    expect(page.locator("#snippet-curl")).to_contain_text(key)
    expect(page.locator("#snippet-curl")).to_contain_text(MODEL)
    page.get_by_role("button", name="Copy").first.click()
    assert page.evaluate("navigator.clipboard.readText()") == key
    assert site.chat(key).status_code == 200
    expect(page.get_by_text("Your first request has arrived")).to_be_visible()  # by itself: nothing was clicked

    page.goto("/t/analytical/")
    page.get_by_role("link", name="Playground", exact=True).click()
    expect(page.get_by_role("button", name="Run")).to_be_enabled()  # the script is there
    page.get_by_role("textbox", name="Message").fill("What is a headway?")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".turn-assistant .turn-text")).to_have_text("Trains run at a headway of two minutes.")
    took_s = time.monotonic() - started_s
    assert took_s < MAX_S
    expect(page.locator(".turn-facts")).to_contain_text("TTFT")
    expect(page.locator(".turn-facts")).to_contain_text("Tokens/s")
    expect(page.locator("#announcer")).to_contain_text("Answer complete")
    assert key not in page.content()

    page.get_by_role("link", name="receipt").click()
    expect(page.get_by_role("heading", name="Timeline")).to_be_visible()


def test_a_wrong_code_and_a_taken_name_are_said_where_they_were_typed(site: Site, open_browser: Callable[..., Person]) -> None:
    page = open_browser().page
    page.goto("/accounts/signup/")
    page.get_by_label("Email").fill("babbage@example.com")
    page.get_by_label("Password", exact=True).fill("short")
    page.get_by_role("button", name="Create account").click()
    expect(page.get_by_role("alert").first).to_contain_text("too short")
    sign_up(page, site, "babbage@example.com")
    page.get_by_label("Name of your organisation").fill("not a name!")
    page.get_by_role("button", name="Create organisation").click()
    expect(page.get_by_role("alert").first).to_contain_text("is not a tenant")
