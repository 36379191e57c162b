"""Invitation and role change, with a browser for each person."""

import re
from collections.abc import Callable

from playwright.sync_api import expect

from tests.browser.conftest import Person, Site
from tests.browser.test_newcomer import sign_up


def test_an_invited_person_joins_and_gets_another_role(site: Site, open_browser: Callable[..., Person]) -> None:
    site.shell("from tests.tenants.cast import person, tenant_with\ntenant_with('inviting', owner=person('host'))")
    owner, guest, email = open_browser("host").page, open_browser().page, "guest@example.com"
    owner.goto("/t/inviting/members/")
    owner.get_by_role("button", name="Invite").click()
    owner.get_by_role("dialog").get_by_label("E-mail address").fill(email)
    owner.get_by_role("dialog").get_by_label("Role").select_option("viewer")
    owner.get_by_role("button", name="Send invitation").click()
    expect(owner.locator(".toast-item")).to_contain_text("was invited as viewer")
    expect(owner.get_by_role("row", name=re.compile(email))).to_contain_text("Resend")
    link = re.search(r"https?://[^/\s]+(/invitations/\S+)", site.last_mail(email))
    assert link is not None

    guest.goto("/")
    guest.get_by_role("link", name="Create an account").click()
    sign_up(guest, site, email)
    guest.goto(link[1])
    guest.get_by_role("button", name="Accept invitation").click()
    expect(guest.get_by_role("heading", name="Overview")).to_be_visible()
    expect(guest.get_by_role("link", name="Playground", exact=True)).to_have_count(0)

    owner.reload()
    owner.get_by_label(re.compile("Role of guest")).select_option("developer")
    owner.get_by_role("row", name=re.compile(email)).get_by_role("button", name="Change").click()
    expect(owner.locator(".toast-item")).to_contain_text("is now developer")
    guest.reload()
    expect(guest.get_by_role("link", name="Playground", exact=True)).to_be_visible()

    owner.get_by_role("button", name=re.compile("Remove guest")).click()
    dialog = owner.get_by_role("dialog")
    dialog.get_by_label(re.compile("to confirm")).first.fill(email)
    dialog.get_by_role("button", name="Remove member").click()
    expect(owner.locator(".toast-item")).to_contain_text("was removed")
    answer = guest.request.get("/t/inviting/")
    assert answer.status == 404
