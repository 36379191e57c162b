"""Eval sets on real engines: through the real gateway and a real worker, on our own account."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import SMALL, TINY, Service
from tests.e2e.installation import eventually

GSM8K = Path(__file__).resolve().parents[1] / "data" / "evals" / "gsm8k_test.jsonl"


@pytest.fixture(scope="module")
def worker(service: Service) -> Iterator[Service]:
    service.installation.start("redis")
    service.installation.start("worker")
    log = service.installation.home / "logs" / "worker.log"
    eventually(lambda: " ready." in log.read_text(), within_s=60, what="the worker is there: without a beat it is told once")
    yield service
    service.installation.stop("worker")
    service.installation.stop("redis")


def ran(service: Service, eval_set: str, model: str) -> dict[str, Any]:
    text = service.installation.manage("run_eval", eval_set, "--model", model, "--wait", "--json", timeout_s=240)
    found: dict[str, Any] = json.loads(text)
    return found


def test_ten_problems_of_gsm8k_are_asked_of_a_real_engine(worker: Service) -> None:
    """The model is a random one: what is looked at is that each case is asked, counted and kept, once."""
    made = worker.installation.manage("import_eval_set", str(GSM8K), "--name", "gsm8k", "--limit", "10")
    assert made == "gsm8k@1"
    run = ran(worker, "gsm8k", TINY)
    assert (run["state"], run["version"], run["cases_done"], run["errors"]) == ("done", "v1", 10, 0)
    assert 0 <= run["score_low"] <= run["score"] <= run["score_high"] <= 1
    records = worker.installation.wait_usage(10, tenant="headway-operations")
    assert {(each["model"], each["version"], each["tier"]) for each in records} == {(TINY, "v1", "batch")}
    assert not any(each["amount_picos"] for each in records), "nothing is charged"
    assert sum(each["prompt_tokens"] for each in records) == run["prompt_tokens"]
    assert sum(each["completion_tokens"] for each in records) == run["completion_tokens"]


def test_answers_of_a_real_model_are_checked(worker: Service, tmp_path: Path) -> None:
    question, check = "What is the capital of France?", {"type": "contains", "value": "Paris"}
    rows = [{"id": "yes", "prompt": question, "max_tokens": 16, "checks": [check]}]
    rows.append({"id": "no", "prompt": question, "max_tokens": 16, "checks": [{**check, "is_not": True}]})
    file = tmp_path / "cases.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    worker.installation.manage("import_eval_set", str(file), "--name", "capitals")
    run = ran(worker, "capitals", SMALL)
    assert (run["state"], run["cases_done"], run["passed"], run["errors"]) == ("done", 2, 1, 0)
