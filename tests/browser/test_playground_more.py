"""The playground's presets, and two models beside each other."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import MODEL, Person, Site
from tests.browser.engine import SLOWLY
from tests.e2e.installation import eventually

OTHER = "mock-two"


@pytest.fixture(scope="module")
def tenant(site: Site) -> str:
    site.shell(
        "from tests.tenants.cast import person, tenant_with\n"
        "tenant_with('comparers', owner=person('comparer'), developer=person('comparer-too'))"
    )
    site.installation.manage("register_model", OTHER)
    site.installation.manage("register_replica", "--model", OTHER, "--url", site.engine.url, "--kind", "vllm")
    eventually(
        lambda: any(replica["state"] == "ready" for replica in site.installation.replicas(OTHER)),
        within_s=30,
        every_s=0.5,
        what="the second model is ready",
    )
    return "comparers"


def ask(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.get_by_role("button", name="Run").click()


def comparing(page: Page, tenant: str) -> tuple[Locator, Locator]:
    page.goto(f"/t/{tenant}/playground/?model={MODEL}")
    page.get_by_role("button", name="Compare").click()
    page.get_by_label("Second model", exact=True).select_option(OTHER)
    first, second = page.locator("[data-column]").all()
    return first, second


def tickets_of(page: Page) -> list[str]:
    found: list[str] = []
    page.on("response", lambda answer: found.append(answer.json()["ticket"]) if answer.url.endswith("/ticket/") else None)
    return found


def test_one_prompt_is_answered_by_two_models_each_with_a_ticket_and_figures_of_its_own(
    site: Site, tenant: str, open_browser: Callable[..., Person]
) -> None:
    page, sockets = open_browser("comparer").page, []
    tickets = tickets_of(page)
    page.on("websocket", lambda socket: sockets.append(socket.url))
    columns = comparing(page, tenant)
    before = len(site.engine.replica.requests)
    ask(page, "the same words")
    for column, model in zip(columns, (MODEL, OTHER), strict=True):
        expect(column.locator("[data-model]")).to_have_text(model)
        expect(column.locator(".turn-user .turn-text")).to_have_text("the same words")
        expect(column.locator(".turn-facts")).to_contain_text("TTFT")
        expect(column.locator(".turn-facts")).to_contain_text("Tokens/s")
    assert len(sockets) == len(set(tickets)) == 2
    asked = [seen for seen in site.engine.replica.requests[before:] if b"the same words" in seen.body]  # no probe of its health
    assert len(asked) == 2
    expect(page.locator("#announcer")).to_contain_text(f"{MODEL}: Answer complete")
    expect(page.locator("#announcer")).to_contain_text(f"{OTHER}: Answer complete")
    columns[1].get_by_role("button", name="Regenerate").click()
    expect(columns[1].locator(".turn-facts")).to_be_visible()
    columns[0].get_by_role("button", name="Edit").click()  # the prompt is both models'
    expect(page.locator(".turn")).to_have_count(0)
    expect(page.get_by_role("textbox", name="Message")).to_have_value("the same words")


def test_each_of_two_runs_is_stopped_by_itself_and_escape_stops_the_rest(
    site: Site, tenant: str, open_browser: Callable[..., Person]
) -> None:
    page = open_browser("comparer").page
    first, second = comparing(page, tenant)
    ask(page, f"Count {SLOWLY}")
    for column in (first, second):
        expect(column.locator(".turn-running")).to_contain_text("0 1 2")
    assert site.engine.num_running() == 2
    second.get_by_role("button", name="Stop this one").click()
    eventually(lambda: site.engine.num_running() == 1, within_s=5, what="one run ends", every_s=0.05)
    expect(second.locator(".turn-facts")).to_contain_text("stopped by you")
    expect(first.locator(".turn-running")).to_be_visible()
    page.keyboard.press("Escape")
    eventually(lambda: site.engine.num_running() == 0, within_s=5, what="the other ends too", every_s=0.05)
    expect(first.locator(".turn-facts")).to_contain_text("stopped by you")


def test_comparing_begins_with_what_was_said_and_leaves_the_first_as_it_is(
    tenant: str, open_browser: Callable[..., Person]
) -> None:
    page = open_browser("comparer").page
    page.goto(f"/t/{tenant}/playground/?model={MODEL}")
    ask(page, "first")
    expect(page.locator(".turn-facts")).to_have_count(1)
    compare = page.get_by_role("button", name="Compare")
    compare.click()
    expect(compare).to_have_attribute("aria-pressed", "true")
    first, second = page.locator("[data-column]").all()
    expect(second.locator(".turn")).to_have_count(2)
    compare.click()
    expect(second).to_be_hidden()
    expect(first.locator(".turn")).to_have_count(2)


def test_a_preset_is_saved_shared_and_opened_and_the_conversation_stays(
    tenant: str, open_browser: Callable[..., Person]
) -> None:
    page = open_browser("comparer").page
    page.goto(f"/t/{tenant}/playground/?model={OTHER}")
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Stop texts").fill("END\nFIN")
    page.get_by_label("JSON schema").fill('{"type": "object"}')
    ask(page, "something secret to say")
    expect(page.locator(".turn-facts")).to_be_visible()
    page.get_by_role("button", name="Presets").click()
    page.get_by_label("Save what is set now as").fill("brief")
    page.get_by_label("Who sees it").select_option("tenant")
    page.get_by_role("button", name="Save preset").click()
    expect(page.locator(".toast-item")).to_contain_text("The preset brief is saved")
    expect(page.locator(".turn-facts")).to_be_visible()  # nothing was loaded anew
    assert "?preset=" in page.url

    other = open_browser("comparer-too").page
    other.goto(page.url)
    expect(other.get_by_label("System prompt")).to_have_value("Be brief.")
    expect(other.get_by_label("Temperature")).to_have_value("0.5")
    expect(other.get_by_label("Stop texts")).to_have_value("END\nFIN")
    expect(other.get_by_label("Model", exact=True)).to_have_value(OTHER)
    assert "something secret" not in other.content()

    page.get_by_role("button", name="Presets").click()
    page.get_by_role("button", name="Copy the link of brief").click()
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    page.get_by_role("button", name="Delete brief").click()
    expect(page.get_by_text("None yet.")).to_be_visible()
