"""Who clicks twice makes one thing, whether the page or the server notices."""

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.browser.conftest import Person, Site

# Clicked while the answer is held back: is the button off, does the form say so, and is a second post stopped?
CLICKED = """() => new Promise((done) => {
  const form = document.querySelector("#main form[method=post]"), button = form.querySelector("button:not([type=button])");
  button.click();
  setTimeout(() => {
    const again = new SubmitEvent("submit", { cancelable: true, bubbles: true });
    form.dispatchEvent(again);
    done([button.disabled, form.getAttribute("aria-busy"), again.defaultPrevented]);
  }, 50);
})"""


def filled_key_form(page: Page, tenant: str, name: str) -> None:
    page.goto(f"/t/{tenant}/keys/new/")
    page.get_by_label("Name", exact=True).fill(name)


def num_keys(site: Site, name: str) -> int:
    found: int = site.shell(f"from tenants.models import ApiKey\nout = ApiKey.unscoped.filter(name={name!r}).count()")
    return found


def test_a_double_click_on_create_key_makes_one_key_and_shows_it(
    site: Site, tenant: str, open_browser: Callable[..., Person]
) -> None:
    page, posts = open_browser(tenant).page, []
    filled_key_form(page, tenant, "clicked twice")
    page.on("request", lambda request: posts.append(request.url) if request.method == "POST" else None)
    page.get_by_role("button", name="Create key").dblclick()
    expect(page.locator("#new-key")).to_have_text(re.compile("hw_live_"))
    assert len(posts) == 1
    assert num_keys(site, "clicked twice") == 1


def test_the_button_is_disabled_while_the_answer_is_on_its_way(tenant: str, open_browser: Callable[..., Person]) -> None:
    page, held = open_browser(tenant).page, []
    filled_key_form(page, tenant, "slowly")
    page.route("**/keys/new/", lambda route: held.append(route))
    assert page.evaluate(CLICKED) == [True, "true", True]
    assert len(held) == 1
    held[0].continue_()
    expect(page.locator("#new-key")).to_be_visible()


def test_two_posts_that_a_page_let_through_make_one_key(site: Site, tenant: str, open_browser: Callable[..., Person]) -> None:
    """As from a browser without our script: `submit()` asks nobody."""
    page = open_browser(tenant).page
    filled_key_form(page, tenant, "unguarded")
    page.evaluate("() => { const form = document.querySelector('#main form[method=post]'); form.submit(); form.submit(); }")
    page.wait_for_url(re.compile("/keys/(made/)?$"))
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("Copy your key now|API keys"))
    assert num_keys(site, "unguarded") == 1
