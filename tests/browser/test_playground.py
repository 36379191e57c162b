"""The playground beside its first run: Stop, edit, regenerate, parameters, code, and errors that lose nothing."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Person, Site
from tests.browser.engine import SLOWLY
from tests.e2e.installation import eventually


@pytest.fixture(scope="module")
def tenant(site: Site) -> str:
    site.shell(
        "from tests.tenants.cast import person, tenant_with\n"
        "tenant_with('players', owner=person('player'), developer=person('player-too'))"
    )
    return "players"


def ask(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.get_by_role("button", name="Run").click()


def test_escape_stops_the_engine_and_keeps_what_came(site: Site, tenant: str, open_browser: Callable[..., Person]) -> None:
    page = open_browser("player").page
    page.goto(f"/t/{tenant}/playground/")
    ask(page, f"Count {SLOWLY}")
    expect(page.locator(".turn-running")).to_contain_text("0 1 2")
    assert site.engine.num_running() == 1
    page.keyboard.press("Escape")
    eventually(lambda: site.engine.num_running() == 0, within_s=1.5, what="the engine's running count falls", every_s=0.05)
    expect(page.locator(".turn-facts")).to_contain_text("stopped by you")
    expect(page.locator(".turn-assistant .turn-text")).to_contain_text("0 1 2")
    expect(page.get_by_role("button", name="Run")).to_be_visible()


def test_a_run_says_what_it_cost_by_its_receipt(site: Site, tenant: str, open_browser: Callable[..., Person]) -> None:
    page = open_browser("player").page
    page.goto(f"/t/{tenant}/playground/")
    ask(page, "first")
    facts = page.locator(".turn-facts")
    expect(facts).to_contain_text(re.compile(r"Cost(\$\d|–)"), timeout=20_000)
    cost = facts.locator("div", has_text="Cost").locator("dd").inner_text()
    facts.get_by_role("link", name="receipt").click()
    expect(page.locator(".facts div", has_text="Cost").locator("dd")).to_have_text(cost)


def test_edit_regenerate_parameters_and_code(site: Site, tenant: str, open_browser: Callable[..., Person]) -> None:
    page = open_browser("player").page
    page.goto(f"/t/{tenant}/playground/")
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("JSON schema").fill('{"type": "object"}')
    ask(page, "first")
    expect(page.locator(".turn-facts")).to_have_count(1)
    sent = site.engine.last_chat()
    assert sent["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "first"}]
    assert (sent["temperature"], sent["seed"], sent["max_tokens"]) == (0.5, 7, 256)
    assert sent["response_format"]["json_schema"]["schema"] == {"type": "object"}

    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".turn-assistant .turn-facts")).to_have_count(1)
    page.get_by_role("button", name="Edit").click()
    expect(page.get_by_role("textbox", name="Message")).to_have_value("first")
    ask(page, "second")
    expect(page.locator(".turn-user .turn-text")).to_have_text("second")
    expect(page.locator(".turn-facts")).to_have_count(1)

    page.get_by_role("button", name="View code").click()
    expect(page.locator("#code-curl")).to_contain_text('"temperature": 0.5')
    page.get_by_role("tab", name="Python").click()
    expect(page.locator("#code-python")).to_contain_text("temperature=0.5")
    compile(page.locator("#code-python").inner_text(), "shown", "exec")


def test_what_was_written_is_kept_when_a_run_fails(site: Site, tenant: str, open_browser: Callable[..., Person]) -> None:
    page = open_browser("player").page
    page.goto(f"/t/{tenant}/playground/")
    page.get_by_label("JSON schema").fill("{not json")
    ask(page, "my long text")
    expect(page.locator("#problem")).to_contain_text("it is not JSON")
    expect(page.get_by_role("textbox", name="Message")).to_have_value("my long text")
    page.get_by_label("JSON schema").fill("")
    page.get_by_label("Temperature").fill("99")
    ask(page, "my long text")
    expect(page.locator("[data-problem]").first).to_contain_text("temperature")
    expect(page.get_by_role("textbox", name="Message")).to_have_value("my long text")


def test_b77_the_same_prompt_is_answered_anew_for_another_member(
    site: Site, tenant: str, open_browser: Callable[..., Person]
) -> None:
    receipts = []
    for user in ("player", "player-too"):
        page = open_browser(user).page
        page.goto(f"/t/{tenant}/playground/")
        before = len(site.engine.replica.requests)
        ask(page, "the same words")
        expect(page.locator(".turn-facts")).to_be_visible()
        assert len(site.engine.replica.requests) > before
        receipts.append(page.get_by_role("link", name="receipt").get_attribute("href"))
    assert len(set(receipts)) == 2
