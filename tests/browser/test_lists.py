"""Lists: what is seen while one is fetched, and when it could not be."""

from collections.abc import Callable

from playwright.sync_api import Route, expect

from tests.browser.conftest import Person, Site


def test_a_list_that_cannot_be_fetched_says_so_and_can_be_tried_again(site: Site, open_browser: Callable[..., Person]) -> None:
    site.shell("from tests.tenants.cast import person, tenant_with\ntenant_with('listing', owner=person('lister'))")
    person = open_browser("lister")
    page = person.page
    page.goto("/t/listing/keys/")
    page.route("**/keys/?**", lambda route: route.abort())
    page.get_by_label("Status").select_option("all")
    expect(page.get_by_role("alert")).to_contain_text("This could not be loaded")
    page.unroute("**/keys/?**")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_text("No API keys yet")).to_be_visible()
    assert len(person.complaints) >= 1  # the browser's own line about the request that the test broke
    person.complaints.clear()


def test_a_list_is_seen_to_be_on_its_way(site: Site, open_browser: Callable[..., Person]) -> None:
    site.shell("from tests.tenants.cast import person, tenant_with\ntenant_with('waiting', owner=person('waiter'))")
    page, held = open_browser("waiter").page, []
    page.goto("/t/waiting/audit/")

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/audit/?**", hold)
    page.get_by_label("Action").select_option("tenant.create")
    expect(page.locator("#list.htmx-request")).to_be_visible()
    held[0].continue_()
    expect(page.locator("#list.htmx-request")).to_have_count(0)
    expect(page.get_by_role("cell", name="tenant.create")).to_be_visible()
    assert "action=tenant.create" in page.url
