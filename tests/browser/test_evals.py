"""Evals by clicks: a set is imported, run on two versions, and the runs are seen side by side. With axe.

Its model's answers come from the scripted engine, through the real gateway; a worker's part is done by the test.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import MODEL, Person, Site
from tests.browser.test_accessibility import MODES, in_each_mode, overflow, violations

OPERATOR = """
from tenants.services.members import ensure_operator
ensure_operator(username="eval-operator", password="x")
"""
WORKER = """
from tests.inference.evals.conftest import work
work()
"""
SHOWN = """
from inference.eval_models import EvalRun
out = list(EvalRun.objects.order_by("id").values_list("id", flat=True))
"""


@pytest.fixture(scope="module")
def operator(site: Site) -> str:
    site.shell(OPERATOR)
    return "eval-operator"


def cases(folder: Path) -> Path:
    """The scripted engine says the same always: of every two cases one passes."""
    rows = [
        {"id": f"c{number}", "prompt": f"Say {number}", "checks": [{"type": "contains", "value": text}]}
        for number, text in enumerate(("headway", "timetable") * 4)
    ]
    path = folder / "cases.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def run(site: Site, page: Page) -> None:
    page.goto("/operator/evals/")
    page.get_by_role("button", name="Run a set").click()
    page.get_by_label("Model and version").select_option(f"{MODEL}|")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("heading", name="on mock")).to_be_visible()
    expect(page.locator("#list .pill", has_text="running")).to_be_visible()
    site.shell(WORKER)
    # The page looks every three seconds.
    expect(page.locator("#list .pill", has_text="done")).to_be_visible()


def test_a_set_is_imported_run_twice_and_compared(
    site: Site, operator: str, open_browser: Callable[..., Person], tmp_path: Path
) -> None:
    page = open_browser(operator).page
    page.goto("/operator/evals/")
    page.get_by_role("button", name="Import a set").click()
    page.get_by_label("Name").fill("sayings")
    page.get_by_label("File").set_input_files(cases(tmp_path))
    page.get_by_role("button", name="Import", exact=True).click()
    expect(page.locator("#toasts")).to_contain_text("sayings@1 has 8 cases")
    run(site, page)
    expect(page.get_by_text("50.0 % (21.5 to 78.5)")).to_be_visible()
    page.get_by_role("button", name="Make it the baseline").click()
    expect(page.locator("#toasts")).to_contain_text("held against it")
    run(site, page)
    page.get_by_role("button", name="Side by side").click()
    expect(page.get_by_text("no difference is shown")).to_be_visible()
    expect(page.get_by_text("+0.0 points (-20.1 to +20.1)")).to_be_visible()
    expect(page.get_by_text("neither passed").first).to_be_visible()


def test_a_gate_is_set_and_a_file_with_an_error_says_its_line(
    site: Site, operator: str, open_browser: Callable[..., Person], tmp_path: Path
) -> None:
    page = open_browser(operator).page
    page.goto("/operator/evals/")
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "x"}\n')
    page.get_by_role("button", name="Import a set").click()
    page.get_by_label("Name").fill("bad")
    page.get_by_label("File").set_input_files(bad)
    page.get_by_role("button", name="Import", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("Line 1: checks is a list")
    page.get_by_label("File").set_input_files(cases(tmp_path))
    page.get_by_label("Name").fill("gated")
    page.get_by_role("button", name="Import", exact=True).click()
    expect(page.locator("#toasts")).to_contain_text("gated@1 has 8 cases")
    page.get_by_role("button", name="Set a gate").click()
    page.locator("#gate").get_by_label("Eval set").select_option("gated@1")
    page.get_by_label("Score at least").fill("40")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.get_by_role("region", name="Gates of models")).to_contain_text("score at least 40 %, with 95 % confidence")
    page.get_by_role("button", name="Remove gated@1 of mock").click()
    expect(page.locator("#toasts")).to_contain_text("no gate of mock any more")


@in_each_mode
def test_pages_of_evals_are_accessible(site: Site, operator: str, open_browser: Callable[..., Person], mode: str) -> None:
    options: dict[str, Any] = MODES[mode]
    runs = site.shell(SHOWN)
    assert len(runs) >= 2, "the tests above have made them"
    page, problems = open_browser(operator, **options).page, []
    for address in ("", f"runs/{runs[0]}/", f"runs/{runs[1]}/against/{runs[0]}/", "sets/1/"):
        page.goto(f"/operator/evals/{address}")
        problems += violations(page) + overflow(page)
    assert not problems, "\n".join(problems)
