"""Commands as people and harnesses use them: the result alone on stdout, errors in one line on stderr, exit code 1.

The first and the last are processes of their own, as a person starts them; the others are forked from one that has Django
loaded, by the same `manage.py`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenants.services.key_format import parse_key
from tests.e2e.command_server import CommandServer
from tests.fakes.migrated import migrated_sqlite

ROOT = Path(__file__).resolve().parents[2]


Done = subprocess.CompletedProcess[str]


def environment_of(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWAY_", "DJANGO_", "DATABASE_"))}
    return kept | {"HEADWAY_HOME": str(home)}


def manage(home: Path, *arguments: str) -> Done:
    command = [sys.executable, str(ROOT / "manage.py"), *arguments]
    return subprocess.run(command, env=environment_of(home), capture_output=True, text=True, cwd="/", timeout=60)


def result(done: Done) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation of its own, on the embedded default with nothing set."""
    folder = tmp_path_factory.mktemp("home")
    migrated_sqlite(folder)
    result(manage(folder, "create_tenant", "acme"))
    result(manage(folder, "register_model", "mock"))
    return folder


class Commands:
    def __init__(self, home: Path) -> None:
        self.server = CommandServer(environment_of(home))

    def __call__(self, *arguments: str) -> Done:
        return self.server.run(arguments, timeout_s=60)


@pytest.fixture(scope="module")
def commands(home: Path) -> Iterator[Commands]:
    found = Commands(home)
    yield found
    found.server.close()


def assert_one_line_error(done: subprocess.CompletedProcess[str], text: str) -> None:
    assert done.returncode == 1
    assert done.stdout == ""
    assert text in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_create_tenant_prints_its_id(home: Path) -> None:
    assert len(result(manage(home, "create_tenant", "globex"))) == 36
    assert json.loads(result(manage(home, "create_tenant", "initech", "--json")))["name"] == "initech"


def test_issue_key_prints_the_key_alone(commands: Commands) -> None:
    assert parse_key(result(commands("issue_key", "acme", "--name", "ci"))) is not None
    data = json.loads(result(commands("issue_key", "acme", "--name", "ci", "--json")))
    assert data["key"].startswith(f"hw_live_{data['id']}_")


def test_revoke_key_says_that_no_gateway_runs(commands: Commands) -> None:
    key = parse_key(result(commands("issue_key", "acme", "--name", "ci")))
    assert key is not None
    assert "no gateway" in result(commands("revoke_key", key.id))


def test_usage_prints_one_object_a_line_and_nothing_for_none(commands: Commands) -> None:
    assert result(commands("usage", "acme", "--json")) == ""


def test_status_is_a_table_and_json(commands: Commands) -> None:
    assert "mock" in result(commands("status"))
    assert json.loads(result(commands("status", "--json")))["models"][0]["id"] == "mock"


def test_a_replica_that_does_not_answer_is_registered_and_says_why(commands: Commands) -> None:
    done = commands("register_replica", "--model", "mock", "--url", "http://127.0.0.1:9", "--kind", "vllm", "--wait", "0")
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
def test_an_error_is_one_line_with_exit_code_1(commands: Commands, arguments: tuple[str, ...], text: str) -> None:
    assert_one_line_error(commands(*arguments), text)


def test_a_database_that_is_not_set_up_is_one_line(tmp_path: Path) -> None:
    assert_one_line_error(manage(tmp_path, "create_tenant", "acme"), "run manage.py migrate")


def test_the_commands_work_from_any_folder_and_do_not_hide_the_standard_library(home: Path) -> None:
    done = manage(home, "shell", "-c", "import platform; print(platform.__file__)")
    assert "platform.py" in done.stdout
    assert str(ROOT) not in done.stdout.splitlines()[-1]
