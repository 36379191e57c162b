"""Commands as people and harnesses use them: the result alone on stdout, errors in one line on stderr, exit code 1."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tenants.services.key_format import parse_key
from tests.fakes.migrated import migrated_sqlite

ROOT = Path(__file__).resolve().parents[2]


def manage(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("HEADWAY_", "DJANGO_", "DATABASE_"))
    }
    environment["HEADWAY_HOME"] = str(home)
    return subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        cwd="/",
        timeout=60,
    )


def result(home: Path, *arguments: str) -> str:
    done = manage(home, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation of its own, on the embedded default with nothing set."""
    folder = tmp_path_factory.mktemp("home")
    migrated_sqlite(folder)
    result(folder, "create_tenant", "acme")
    result(folder, "register_model", "mock")
    return folder


def assert_one_line_error(done: subprocess.CompletedProcess[str], text: str) -> None:
    assert done.returncode == 1
    assert done.stdout == ""
    assert text in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_create_tenant_prints_its_id(home: Path) -> None:
    assert len(result(home, "create_tenant", "globex")) == 36
    assert json.loads(result(home, "create_tenant", "initech", "--json"))["name"] == "initech"


def test_issue_key_prints_the_key_alone(home: Path) -> None:
    assert parse_key(result(home, "issue_key", "acme", "--name", "ci")) is not None
    data = json.loads(result(home, "issue_key", "acme", "--name", "ci", "--json"))
    assert data["key"].startswith(f"hw_live_{data['id']}_")


def test_revoke_key_says_that_no_gateway_runs(home: Path) -> None:
    key = parse_key(result(home, "issue_key", "acme", "--name", "ci"))
    assert key is not None
    assert "no gateway" in result(home, "revoke_key", key.id)


def test_usage_prints_one_object_a_line_and_nothing_for_none(home: Path) -> None:
    assert result(home, "usage", "acme", "--json") == ""


def test_status_is_a_table_and_json(home: Path) -> None:
    assert "mock" in result(home, "status")
    assert json.loads(result(home, "status", "--json"))["models"][0]["id"] == "mock"


def test_a_replica_that_does_not_answer_is_registered_and_says_why(home: Path) -> None:
    done = manage(home, "register_replica", "--model", "mock", "--url", "http://127.0.0.1:9", "--kind", "vllm", "--wait", "0")
    assert (done.returncode, done.stdout.startswith("rep-")) == (0, True)
    assert "not ready yet" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("create_tenant", "acme"), "there is a tenant 'acme' already"),
        (("create_tenant", "a b"), "is not a tenant's name"),
        (("create_tenant",), "the following arguments are required: name"),
        (("issue_key", "nobody", "--name", "ci"), "there is no tenant 'nobody'"),
        (("issue_key", "acme", "--name", " "), "1 to 100 characters"),
        (("revoke_key", "nothing"), "there is no key 'nothing'"),
        (("register_model", "mock"), "there is a model 'mock' already"),
        (("register_model", "x", "--golden", "/nowhere.json"), "go with --weights"),
        (("register_replica", "--model", "none", "--url", "http://h:1", "--kind", "vllm"), "there is no model 'none'"),
        (("register_replica", "--model", "mock", "--url", "h:1", "--kind", "vllm"), "url must be"),
        (("scale", "mock", "--replicas", "1"), "no managed version"),
        (("scale", "mock", "--replicas", "many"), "invalid int value: 'many'"),
        (("usage", "nobody"), "there is no tenant 'nobody'"),
    ],
)
def test_an_error_is_one_line_with_exit_code_1(home: Path, arguments: tuple[str, ...], text: str) -> None:
    assert_one_line_error(manage(home, *arguments), text)


def test_a_database_that_is_not_set_up_is_one_line(tmp_path: Path) -> None:
    assert_one_line_error(manage(tmp_path, "create_tenant", "acme"), "run manage.py migrate")


def test_the_commands_work_from_any_folder_and_do_not_hide_the_standard_library(home: Path) -> None:
    done = manage(home, "shell", "-c", "import platform; print(platform.__file__)")
    assert "platform.py" in done.stdout
    assert str(ROOT) not in done.stdout.splitlines()[-1]
