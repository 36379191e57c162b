"""The operators' pages of evals: import, run, look, compare, gate, cancel; for operators alone."""

import re
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from dashboard.services.form_claims import FIELD, new_nonce
from inference.eval_models import EvalCase, EvalGate, EvalRun, EvalSample, EvalSet
from inference.models import Pool
from tests.dashboard.operators import client, operator
from tests.inference.evals.conftest import case_lines, gateway, pool, small_set, work
from tests.inference.evals.fake_gateway import Asked, FakeGateway, Reply, answer
from tests.tenants.cast import person
from tests.workers.broker import Broker

__all__ = ["client", "gateway", "operator", "pool"]  # fixtures
pytestmark = pytest.mark.django_db
MAX_QUERIES = 25


@pytest.fixture(autouse=True)
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(monkeypatch)


def says(asked: Asked) -> Reply:
    version = asked.headers["x-headway-version"]
    return answer("<b>no</b>" if version == "v2" and asked.prompt != "say 1" else "ok", version=version)


def posted(client: Client, address: str, **values: Any) -> Any:
    return client.post(f"/operator/evals/{address}", {FIELD: new_nonce(), **values}, follow=True)


def run_both(client: Client, gateway: FakeGateway) -> tuple[EvalRun, EvalRun]:
    gateway.script = says
    small_set(20)
    for version in ("v1", "v2"):
        posted(client, "run/", eval_set="small@1", version=f"m|{version}", concurrency=4)
    work()
    first, second = EvalRun.objects.order_by("id")
    return first, second


def test_a_set_is_imported_run_on_two_versions_and_compared(client: Client, pool: Pool, gateway: FakeGateway) -> None:
    file = SimpleUploadedFile("cases.jsonl", b"\n".join(case_lines(20)))
    page = posted(client, "import/", name="small", file=file, format="auto", limit="", description="ours")
    assert "small@1 has 20 cases" in page.content.decode()
    first, second = run_both(client, gateway)
    text = client.get("/operator/evals/").content.decode()
    assert "-95.0 points" in text and "1 worse than the baseline" in text
    assert text.index(f"/operator/evals/runs/{second.id}/") < text.index(f"/operator/evals/runs/{first.id}/")
    text = client.get(f"/operator/evals/runs/{second.id}/").content.decode()
    assert "5.0 % (0.9 to 23.6)" in text
    assert "&lt;b&gt;no&lt;/b&gt;" in text and "<b>no</b>" not in text
    text = client.get(f"/operator/evals/runs/{second.id}/?against={first.id}", follow=True).content.decode()
    assert "-95.0 points" in text and "McNemar" in text
    assert text.count('<span class="pill pill-bad">worse</span>') > 1


def test_a_file_with_an_error_says_its_line_and_imports_nothing(client: Client) -> None:
    file = SimpleUploadedFile("cases.jsonl", b'{"prompt": "x"}\n')
    page = posted(client, "import/", name="small", file=file, format="auto")
    assert "Line 1: checks is a list" in page.content.decode()
    assert not EvalSet.objects.exists()


def test_a_form_sent_twice_runs_once(client: Client, pool: Pool) -> None:
    small_set()
    values = {FIELD: new_nonce(), "eval_set": "small@1", "version": "m|v2", "concurrency": "4"}
    for _ in range(2):
        client.post("/operator/evals/run/", values)
    assert EvalRun.objects.count() == 1


def test_a_run_is_cancelled_and_a_done_one_is_the_baseline(client: Client, pool: Pool, gateway: FakeGateway) -> None:
    first, _ = run_both(client, gateway)
    posted(client, f"runs/{first.id}/baseline/")
    assert list(EvalRun.objects.filter(is_baseline=True)) == [first]
    posted(client, "run/", eval_set="small@1", version="m|", concurrency=1)
    third = EvalRun.objects.latest("id")
    assert "It is cancelled" in posted(client, f"runs/{third.id}/cancel/").content.decode()
    third.refresh_from_db()
    assert third.state == "cancelled"
    assert "is over already" in posted(client, f"runs/{third.id}/cancel/").content.decode()


def test_a_gate_is_set_in_per_cent_and_removed(client: Client, pool: Pool) -> None:
    small_set()
    posted(client, "gate/", model="m", eval_set="small@1", min_score="60", max_drop="2.5", confidence="90")
    gate = EvalGate.objects.get()
    assert (gate.min_score, gate.max_drop, gate.confidence) == (0.6, 0.025, 0.9)
    text = client.get("/operator/evals/").content.decode()
    assert "score at least 60 % and at most 2.5 points below the stable version, with 90 % confidence" in text
    page = posted(client, "gate/", model="m", eval_set="small@1", min_score="", max_drop="", confidence="90")
    assert "A gate has a least score" in page.content.decode()
    posted(client, f"gates/{gate.id}/remove/")
    assert not EvalGate.objects.exists()


def test_pages_open_with_few_queries_and_nothing_inline(client: Client, pool: Pool, gateway: FakeGateway) -> None:
    first, second = run_both(client, gateway)
    eval_set = EvalSet.objects.get()
    addresses = [
        "",
        "?page=before-1",
        f"runs/{second.id}/",
        f"runs/{second.id}/?outcome=passed",
        f"runs/{second.id}/?outcome=error",
        f"runs/{second.id}/?page=9",
        f"runs/{second.id}/against/{first.id}/",
        f"sets/{eval_set.id}/",
    ]
    for address in addresses:
        with CaptureQueriesContext(connection) as queries:
            response = client.get(f"/operator/evals/{address}")
        assert response.status_code == 200, address
        assert len(queries) <= MAX_QUERIES, (address, len(queries))
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", response.content.decode()), address
    for missing in ("runs/999/", "runs/999999999999999999/", f"runs/{first.id}/against/999/", "sets/999/"):
        assert client.get(f"/operator/evals/{missing}").status_code == 404, missing
    for nothing in ("runs/999/cancel/", "gates/999/remove/"):
        assert client.post(f"/operator/evals/{nothing}").status_code == 302


def test_the_list_takes_no_more_queries_for_more_runs(client: Client, pool: Pool, gateway: FakeGateway) -> None:
    def number() -> int:
        with CaptureQueriesContext(connection) as queries:
            client.get("/operator/evals/")
        return len(queries)

    run_both(client, gateway)
    before = number()
    for _ in range(3):
        posted(client, "run/", eval_set="small@1", version="m|v2", concurrency=4)
    work()
    assert client.get("/operator/evals/").content.decode().count("-95.0 points") == 4
    assert number() == before


def test_a_long_answer_is_cut(client: Client, pool: Pool, gateway: FakeGateway) -> None:
    gateway.script = lambda asked: answer("y" * 100_000, version=asked.headers["x-headway-version"])
    small_set(1)
    posted(client, "run/", eval_set="small@1", version="m|v1", concurrency=1)
    work()
    text = client.get(f"/operator/evals/runs/{EvalRun.objects.get().id}/").content.decode()
    assert "96,000 more characters" in text


def test_nobody_but_an_operator_finds_them(pool: Pool) -> None:
    small_set()
    assert EvalCase.objects.count() == 6
    stranger = Client()
    stranger.force_login(person("stranger"))
    for address in ("", "runs/1/", "runs/1/against/2/", "sets/1/"):
        assert Client().get(f"/operator/evals/{address}").status_code == 302
        assert stranger.get(f"/operator/evals/{address}").status_code == 404
    for address in ("import/", "run/", "gate/", "gates/1/remove/", "runs/1/cancel/", "runs/1/baseline/"):
        values = {FIELD: new_nonce(), "eval_set": "small@1", "version": "m|v1", "concurrency": "4", "model": "m"}
        assert stranger.post(f"/operator/evals/{address}", values).status_code == 404
    assert not EvalRun.objects.exists()
    assert not EvalGate.objects.exists()
    assert not EvalSample.objects.exists()
