"""What no single file can show."""

import ast
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
APPS = ("tenants", "billing", "inference", "workers", "dashboard")
DOORS = {"services", "selectors", "errors", "access", "owned"}


def python_files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from (path for path in (ROOT / folder).rglob("*.py") if "migrations" not in path.parts)


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module


def tracked_files() -> list[str]:
    return subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]


def test_platform_is_no_package_and_hides_nothing() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()
    assert Path(platform.__file__).is_relative_to(Path(sys.base_prefix))


def test_no_module_is_named_like_the_standard_library_or_a_dependency() -> None:
    dependencies = {
        "celery",
        "django",
        "channels",
        "daphne",
        "uvicorn",
        "httpx",
        "redis",
        "stripe",
        "vllm",
        "torch",
        "supervisor",
    }
    taken = (set(sys.stdlib_module_names) | dependencies) - {"test"}
    names = {
        path.stem
        for path in python_files(*APPS, "platform/headway")
        if path.parent.parent == ROOT or path.parent.name == "headway"
    }
    names -= {"__init__", "selectors"}  # STYLE 2 names that one
    assert not names & taken, names & taken


def test_policy_is_pure() -> None:
    """Standard library only, and of it nothing that does I/O, tells the time or is random."""
    forbidden = {
        "asyncio",
        "time",
        "datetime",
        "random",
        "secrets",
        "os",
        "socket",
        "threading",
        "subprocess",
        "pathlib",
        "logging",
    }
    for path in python_files("inference/policy"):
        for name in imports_of(path):
            top = name.split(".")[0]
            allowed = name.startswith("inference.policy") or (top in sys.stdlib_module_names and top not in forbidden)
            assert allowed, f"{path.relative_to(ROOT)} imports {name}"
        assert not any(isinstance(node, ast.AsyncFunctionDef | ast.Await) for node in ast.walk(ast.parse(path.read_text()))), (
            path
        )


def test_importing_policy_imports_no_django() -> None:
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in python_files("inference/policy")]
    code = f"import sys, {', '.join(module.removesuffix('.__init__') for module in modules)}; sys.exit('django' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize("app", APPS)
def test_apps_meet_at_doors(app: str) -> None:
    for path in python_files(app):
        if "management" in path.parts or path.name == "admin.py":
            continue  # edges of their own app: they may use all of it, and other apps' doors
        for name in imports_of(path):
            parts = name.split(".")
            if parts[0] in APPS and parts[0] != app:
                is_api = "api" in path.parts and name == "tenants.api.base"  # who calls, and what errors look like: one for all
                assert is_api or (len(parts) > 1 and parts[1] in DOORS), f"{path.relative_to(ROOT)} imports {name}"


def test_domain_code_imports_no_edge() -> None:
    edges = {"admin", "views", "api", "management", "gateway", "consumers"}
    for app in APPS:
        for path in python_files(f"{app}/services"):
            for name in imports_of(path):
                parts = name.split(".")
                assert parts[0] not in APPS or len(parts) < 2 or parts[1] not in edges, (
                    f"{path.relative_to(ROOT)} imports {name}"
                )


def test_package_files_are_empty() -> None:
    for path in python_files(*APPS, "platform/headway", "tests"):
        if path.name == "__init__.py":
            assert path.read_text() == "", path


def test_the_environment_is_read_in_one_module() -> None:
    allowed = {
        "platform/headway/env.py",
        "platform/headway/supervision.py",
        "platform/headway/asgi.py",
        "platform/headway/processes.py",
    }
    for path in python_files(*APPS, "platform/headway"):
        name = str(path.relative_to(ROOT))
        if name in allowed or "engines/scripts" in name:
            continue
        assert not re.search(r"os\.environ\.get|os\.getenv|os\.environ\[", path.read_text()), (
            f"{name} reads the environment itself"
        )


def test_every_setting_is_documented() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    read = set()
    for path in python_files(*APPS, "platform/headway"):
        read |= set(
            re.findall(r"env\.(?:text|secret|whole|seconds|truth|names|folder|database)\(\s*\"([A-Z_]+)\"", path.read_text())
        )
    assert len(read) > 15
    assert not {name for name in read if f"`{name}`" not in page}


def test_no_file_names_a_registrys_host_or_a_path_of_this_machine() -> None:
    hosts = re.compile(
        "|".join(["pypi" + r"\.org", "pythonhosted" + r"\.org", "npmjs" + r"\.(?:org|com)", "deb" + r"\.debian\.org"])
    )
    torch_index = "download." + "pytorch.org"
    torch_places = []
    for name in tracked_files():
        path = ROOT / name
        if not path.is_file():
            continue
        text = path.read_text(errors="replace")
        assert not hosts.search(text), name
        assert "/work/" + "main" not in text and "/opt/" + "wheels" not in text, name
        torch_places += [name] * text.count(torch_index)
    assert torch_places == ["platform/deploy/bootstrap.py"]
