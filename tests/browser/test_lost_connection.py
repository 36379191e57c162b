"""A connection that goes and comes back: pages say so, show no old number as a live one, and lack nothing afterwards."""

import json
import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, WebSocketRoute, expect

from tests.browser.conftest import Person, Site
from tests.browser.engine import SLOWLY
from tests.browser.test_newcomer import make_key
from tests.e2e.installation import eventually


class Wire:
    """Between the page and the site: it passes frames on, drops or withholds some, or is cut."""

    def __init__(self, page: Page, pattern: str) -> None:
        self.pages: list[WebSocketRoute] = []
        self.sent: list[Any] = []
        self.num_to_drop = 0
        self.is_open = True
        page.route_web_socket(re.compile(pattern), self._opened)

    def _opened(self, ours: WebSocketRoute) -> None:
        if not self.is_open:
            ours.close(code=1011)
            return
        self.pages.append(ours)
        server = ours.connect_to_server()

        def heard(text: str | bytes) -> None:
            self.sent.append(json.loads(text))
            server.send(text)

        ours.on_message(heard)
        server.on_message(lambda text: self._pass(ours, str(text)))

    def _pass(self, ours: WebSocketRoute, text: str) -> None:
        if self.num_to_drop and json.loads(text).get("type") == "change":
            self.num_to_drop -= 1
            return
        ours.send(text)

    def cut(self) -> None:
        self.is_open = False
        self.pages[-1].close(code=1011)


def requests_shown(page: Page) -> int:
    return int(page.locator("[data-live-text=requests]").inner_text())


def test_a_live_page_says_that_it_reconnects_and_then_shows_what_it_missed(
    site: Site, tenant: str, open_browser: Callable[..., Person]
) -> None:
    page = open_browser(tenant).page
    page.goto(f"/t/{tenant}/")
    key = make_key(page, "numbers")
    wire = Wire(page, r"/live/$")
    page.goto(f"/t/{tenant}/")
    expect(page.locator("#live-status")).to_have_text("Live")
    before = requests_shown(page)
    wire.cut()
    expect(page.locator("#live-status")).to_have_text(re.compile(r"^Reconnecting… numbers are of \d\d:\d\d:\d\d$"))
    expect(page.locator("[data-live]")).to_have_attribute("data-fresh", "false")
    assert site.chat(key).status_code == 200
    assert requests_shown(page) == before  # as old as it says
    wire.is_open = True
    expect(page.locator("#live-status")).to_have_text("Live", timeout=20_000)
    expect(page.locator("[data-live-text=requests]")).to_have_text(str(before + 1))
    expect(page.locator("[data-live]")).to_have_attribute("data-fresh", "true")


def test_a_page_that_missed_a_frame_asks_for_the_whole(site: Site, tenant: str, open_browser: Callable[..., Person]) -> None:
    page = open_browser(tenant).page
    page.goto(f"/t/{tenant}/")
    key = make_key(page, "gaps")
    wire = Wire(page, r"/live/$")
    page.goto(f"/t/{tenant}/")
    expect(page.locator("#live-status")).to_have_text("Live")
    before = requests_shown(page)
    wire.num_to_drop = 1
    assert site.chat(key).status_code == 200
    # The next frame, a change or a beat, carries a number that shows the gap.
    expect(page.locator("[data-live-text=requests]")).to_have_text(str(before + 1), timeout=20_000)
    assert {"type": "resync"} in wire.sent
    assert wire.num_to_drop == 0
    expect(page.locator("#live-status")).to_have_text("Live")


def test_a_connection_that_says_nothing_for_long_is_taken_for_lost(tenant: str, open_browser: Callable[..., Person]) -> None:
    """As after a network that went without a word: the socket stays open, and nothing comes."""
    page = open_browser(tenant).page
    page.clock.install()
    page.route_web_socket(re.compile(r"/live/$"), lambda silent: None)
    page.goto(f"/t/{tenant}/")
    expect(page.locator("#live-status")).to_have_text("Connecting…")
    page.clock.run_for(16_000)
    expect(page.locator("#live-status")).to_have_text("Reconnecting…")


def test_a_run_whose_connection_breaks_keeps_what_came_and_can_be_run_again(
    site: Site, tenant: str, open_browser: Callable[..., Person]
) -> None:
    page = open_browser(tenant).page
    wire = Wire(page, r"/v1/generate")
    page.goto(f"/t/{tenant}/playground/")
    page.get_by_role("textbox", name="Message").fill(f"Count {SLOWLY}")
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".turn-running")).to_contain_text("0 1 2")
    wire.pages[-1].close(code=1011)
    expect(page.locator("[data-problem]").first).to_contain_text("The connection to the service was lost")
    expect(page.locator(".turn-assistant .turn-text")).to_contain_text("0 1 2")
    expect(page.locator(".turn-facts")).to_contain_text("with an error")
    expect(page.locator("#announcer")).to_contain_text("ended with an error")
    eventually(lambda: site.engine.num_running() == 0, within_s=10, what="the engine stops too", every_s=0.05)
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".turn-running")).to_contain_text("0 1 2")
    page.keyboard.press("Escape")
    expect(page.locator(".turn-facts")).to_contain_text("stopped by you")
    expect(page.locator("[data-problem]").first).to_be_hidden()
