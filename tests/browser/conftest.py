"""A whole installation (gateway, site, Redis-protocol server, scripted engine) and Debian's Chromium before it."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from tests.browser.engine import Engine
from tests.e2e.installation import Installation, eventually

CHROMIUM = Path(os.environ.get("HEADWAY_CHROMIUM") or "/usr/bin/chromium")
MODEL = "mock"
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1360, "height": 860}


@dataclass
class Site:
    installation: Installation
    engine: Engine
    sessions: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.installation.site_port}"

    def shell(self, code: str) -> Any:
        """Run code in the installation; what it puts into `out`."""
        text = self.installation.manage("shell", "-v", "0", "-c", f"import json\nout = None\n{code}\nprint(json.dumps(out))")
        return json.loads(text.splitlines()[-1])

    def session_of(self, username: str) -> str:
        """One for each user: to make it takes a process."""
        if username not in self.sessions:
            self.sessions[username] = self._new_session(username)
        return self.sessions[username]

    def _new_session(self, username: str) -> str:
        code = f"""
from django.contrib.auth import SESSION_KEY, BACKEND_SESSION_KEY, HASH_SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from tenants.models import User
user, session = User.objects.get(username={username!r}), SessionStore()
session[SESSION_KEY], session[HASH_SESSION_KEY] = str(user.pk), user.get_session_auth_hash()
session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
session.create()
out = session.session_key
"""
        return str(self.shell(code))

    def last_mail(self, to: str) -> str:
        rows = f"Mail.objects.filter(to={to!r}).order_by('-id').values_list('text', flat=True)"
        return str(self.shell(f"from workers.models import Mail\nout = {rows}.first()"))

    def chat(self, key: str, **more: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, **more}
        return httpx.post(
            f"{self.installation.url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}, timeout=20
        )


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    installation = Installation(
        tmp_path_factory.mktemp("browser"),
        database_url=os.environ.get("DATABASE_URL", ""),
        HEADWAY_FORM_POSTS_PER_MINUTE="500",
        HEADWAY_COMPANY_NAME="Example Inference GmbH",
        HEADWAY_BANK_DETAILS="Example Bank|IBAN DE02 1203 0000 0000 2020 51",
    )
    engine = Engine()
    found = Site(installation, engine)
    try:
        installation.migrate()
        for daemon in ("redis", "web"):
            installation.start(daemon)
        installation.start_gateway()
        installation.manage("register_model", MODEL)
        installation.manage("register_replica", "--model", MODEL, "--url", engine.url, "--kind", "vllm")
        eventually(lambda: answers(f"{found.url}/readyz"), within_s=120, what=f"the site is ready: {installation.log('web')}")
        eventually(
            lambda: any(replica["state"] == "ready" for replica in installation.replicas(MODEL)),
            within_s=60,
            every_s=0.2,
            what="the engine is ready",
        )
        yield found
    finally:
        installation.close()
        engine.close()


def answers(url: str) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(url, timeout=2).status_code == 200
    return False


@pytest.fixture
def tenant(site: Site, request: pytest.FixtureRequest) -> Iterator[str]:
    """One of its own for each test, called as its owner."""
    name = f"t{abs(hash(request.node.name)) % 10**8}"
    site.shell(f"from tests.tenants.cast import person, tenant_with\ntenant_with({name!r}, owner=person({name!r}))")
    yield name


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    assert CHROMIUM.exists(), f"{CHROMIUM} is missing: apt-get install chromium, or name one in HEADWAY_CHROMIUM"
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield found
        found.close()


@dataclass
class Person:
    """A browser of somebody's, which must have nothing to complain of."""

    context: BrowserContext
    page: Page
    complaints: list[str] = field(default_factory=list)

    def heard(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(f"{self.page.url}: {message.text}")


@pytest.fixture
def open_browser(browser: Browser, site: Site) -> Iterator[Callable[..., Person]]:
    """Of nobody, or with the session of a user; its console must stay without errors and CSP reports."""
    people: list[Person] = []

    def opened(username: str = "", *, scheme: Any = "light", size: Any = DESK) -> Person:
        context = browser.new_context(viewport=size, color_scheme=scheme, base_url=site.url)
        context.grant_permissions(["clipboard-read", "clipboard-write"], origin=site.url)
        if username:
            context.add_cookies([{"name": "sessionid", "value": site.session_of(username), "url": site.url}])
        context.set_default_timeout(10_000)
        person = Person(context, context.new_page())
        person.page.on("console", person.heard)
        person.page.on("pageerror", lambda error: person.complaints.append(f"{person.page.url}: {error}"))
        people.append(person)
        return person

    yield opened
    for person in people:
        person.context.close()
        assert not person.complaints, person.complaints
