"""Run the rings of tests one after another (`make test`), or the storms (`make soak`).

services   policy, services and parts: on SQLite, and again on a real PostgreSQL
edges      whole processes, real sockets and real vLLM: on PostgreSQL
smoke      one request from end to end: on SQLite, the embedded default
"""

import os
import subprocess
import sys
import time

from tests.fakes.postgres import postgres_server

SERVICES = ["tests/test_architecture.py", "tests/headway", "tests/tenants", "tests/billing", "tests/inference"]
EDGES = ["tests/contract", "tests/fuzz", "tests/e2e", "tests/chaos"]
SMOKE = ["tests/smoke"]


def run(label: str, paths: list[str], *, database_url: str, extra: list[str]) -> int:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
    environment |= {name: os.environ[name] for name in ("HEADWAY_ENGINES_DIR", "HEADWAY_ENGINE_KIND") if name in os.environ}
    environment["DATABASE_URL"] = database_url
    print(f"\n=== {label} ===", flush=True)  # noqa: T201
    started_s = time.monotonic()
    code = subprocess.run([sys.executable, "-m", "pytest", "-q", *extra, *paths], env=environment).returncode
    print(f"=== {label}: {'passed' if code == 0 else 'FAILED'} in {time.monotonic() - started_s:.0f} s ===", flush=True)  # noqa: T201
    return code


def main(arguments: list[str]) -> int:
    with postgres_server() as url:
        if arguments == ["soak"]:
            return run("soak, PostgreSQL", ["tests"], database_url=url, extra=["-m", "soak", "-s"])
        codes = [
            run("services, SQLite", SERVICES, database_url="", extra=arguments),
            run("services, PostgreSQL", SERVICES, database_url=url, extra=arguments),
            run("edges, PostgreSQL", EDGES, database_url=url, extra=arguments),
            run("smoke, SQLite", SMOKE, database_url="", extra=arguments),
        ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
