"""What pages show at the widths people have: nothing is out of reach, and nothing is one word a line."""

from collections.abc import Callable

from playwright.sync_api import Page

from tests.browser.conftest import DESK, PHONE, Person, Site
from tests.browser.test_newcomer import make_key
from tests.e2e.installation import eventually

# Of every action of a list, whether its right edge lies inside its card; and of the page, whether it scrolls sideways.
IN_REACH = """() => [...document.querySelectorAll(".rows td.action .btn")].map((each) => {
  const card = each.closest(".scroll-x").getBoundingClientRect(), box = each.getBoundingClientRect();
  return box.right <= card.right + 1 && box.left >= card.left;
})"""
HIDDEN_PX = (
    """() => Math.max(0, ...[...document.querySelectorAll(".scroll-x")].map((box) => box.scrollWidth - box.clientWidth))"""
)
PAGE_IS_WIDER = "() => document.documentElement.scrollWidth > innerWidth"
LINES = """() => [...document.querySelectorAll(".offer-changes p")].map((each) =>
  Math.round(each.getBoundingClientRect().height / parseFloat(getComputedStyle(each).lineHeight)))"""


def widths(page: Page, address: str) -> None:
    page.goto(address)
    page.evaluate("document.fonts.ready")
    assert not page.evaluate(PAGE_IS_WIDER), address


def rows_after_reload(page: Page) -> int:
    page.reload()
    return page.locator(".rows tbody tr").count()


def test_actions_and_columns_are_in_reach(site: Site, tenant: str, open_browser: Callable[..., Person]) -> None:
    desk, phone = open_browser(tenant).page, open_browser(tenant, size=PHONE).page
    desk.goto(f"/t/{tenant}/")
    key = make_key(desk, "a production backend with a name as long as names of backends are")
    assert site.chat(key).status_code == 200
    for page in (desk, phone):
        for name in ("keys", "members", "webhooks"):
            widths(page, f"/t/{tenant}/{name}/")
            assert all(page.evaluate(IN_REACH)), (name, page.viewport_size)
        assert page.goto(f"/t/{tenant}/keys/") and page.evaluate(IN_REACH) == [True]
    desk.set_viewport_size({"width": 1280, "height": 800})
    for name in ("keys", "requests"):
        desk.goto(f"/t/{tenant}/{name}/")
        if name == "requests":
            eventually(lambda: rows_after_reload(desk) == 1, within_s=10, what="the record of the request is listed")
        assert desk.evaluate(HIDDEN_PX) == 0, name
    phone.goto(f"/t/{tenant}/requests/")
    assert phone.evaluate(HIDDEN_PX) > 0  # it scrolls, inside its card
    assert not phone.evaluate(PAGE_IS_WIDER)


def test_what_a_plan_changes_can_be_read_on_a_phone(site: Site, tenant: str, open_browser: Callable[..., Person]) -> None:
    for size in (PHONE, DESK):
        page = open_browser(tenant, size=size).page
        widths(page, f"/t/{tenant}/settings/")
        lines = page.evaluate(LINES)
        assert lines and max(lines) <= 2, (size, lines)
