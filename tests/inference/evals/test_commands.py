"""The commands: what they print, for people and for programs."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from inference.eval_models import EvalGate, EvalRun, EvalSet
from inference.models import Pool
from inference.services.evals import working
from tests.inference.evals.conftest import case_lines, work_once
from tests.inference.evals.fake_gateway import Asked, FakeGateway, Reply, answer

pytestmark = pytest.mark.django_db


def printed(*arguments: Any, **options: Any) -> str:
    out = StringIO()
    call_command(*map(str, arguments), stdout=out, stderr=StringIO(), **options)
    return out.getvalue().strip()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cases.jsonl"
    path.write_bytes(b"\n".join(case_lines(8, tags=["easy"])))
    return path


def says(asked: Asked) -> Reply:
    version = asked.headers["x-headway-version"]
    return answer("no" if version == "v2" and asked.prompt != "say 1" else "ok", version=version)


def test_import_run_and_report(pool: Pool, gateway: FakeGateway, file: Path) -> None:
    gateway.script = says
    assert printed("import_eval_set", file, "--name", "small") == "small@1"
    assert json.loads(printed("import_eval_set", file, "--name", "small", "--json"))["is_new"] is False
    for version in ("v1", "v2"):
        number = int(printed("run_eval", "small", "--model", "m", "--version", version))
        work_once()
    report = json.loads(printed("eval_report", number, "--against", number - 1, "--json"))
    assert (report["passed"], report["cases"], report["version"]) == (1, 8, "v2")
    assert report["comparison"]["is_regression"] is True
    assert report["tags"][0]["tag"] == "easy"
    text = printed("eval_report", number, "--against", number - 1)
    assert "12.5 (2.2 to 47.1)" in text
    assert "worse" in text


def test_waiting_ends_with_the_run_and_says_whether_it_is_done(
    pool: Pool, gateway: FakeGateway, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.script = lambda _asked: answer("ok", version="v1")
    monkeypatch.setattr("inference.management.commands.run_eval.time.sleep", lambda _seconds: work_once())
    printed("import_eval_set", file, "--name", "small")
    assert "m v1: 100.0 % (67.6 to 100.0)" in printed("run_eval", "small", "--model", "m", "--wait")
    with pytest.raises(CommandError, match="answered by v1, and not by v2"):
        printed("run_eval", "small", "--model", "m", "--version", "v2", "--wait")
    assert working.MAX_STARTS > 1


def test_a_gate_is_set_and_taken_away(pool: Pool, file: Path) -> None:
    printed("import_eval_set", file, "--name", "small")
    shown = printed("set_eval_gate", "small", "--model", "m", "--min-score", "0.5", "--max-drop", "0.02")
    assert shown == "small@1 is a gate of m: min_score 0.5, max_drop 0.02, confidence 0.95"
    assert EvalGate.objects.get().max_drop == 0.02
    printed("set_eval_gate", "small", "--model", "m", "--remove")
    assert not EvalGate.objects.exists()


def test_errors_are_one_line(pool: Pool, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "x"}\n')
    for arguments, says_what in (
        (("import_eval_set", bad, "--name", "small"), "line 1: checks is a list"),
        (("import_eval_set", tmp_path / "none", "--name", "small"), "No such file"),
        (("run_eval", "small", "--model", "m"), "there is no eval set 'small'"),
        (("eval_report", 7), "there is no eval run 7"),
    ):
        with pytest.raises(CommandError, match=says_what):
            printed(*arguments)
    assert not EvalSet.objects.exists()
    assert not EvalRun.objects.exists()
