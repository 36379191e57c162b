"""Run the rings of tests one after another (`make test`), some of them (`python -m tests.rings edges smoke`), or the storms.

services   policy, services and parts: on SQLite, and again on a real PostgreSQL
edges      whole processes, real sockets and real vLLM: on PostgreSQL
smoke      one request from end to end: on SQLite, the embedded default
"""

import os
import subprocess
import sys
import time

from tests.fakes.postgres import postgres_server

# Real vLLM lives here among the services' tests, which mirror the packages; it runs with the edges.
ENGINES = "tests/inference/node/test_real_engines.py"
SERVICES = [
    f"--ignore={ENGINES}",
    "tests/test_architecture.py",
    "tests/headway",
    "tests/tenants",
    "tests/billing",
    "tests/inference",
]
EDGES = [ENGINES, "tests/contract", "tests/fuzz", "tests/e2e", "tests/chaos"]
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


RINGS = {
    "sqlite": ("services, SQLite", SERVICES, False),
    "postgres": ("services, PostgreSQL", SERVICES, True),
    "edges": ("edges, PostgreSQL", EDGES, True),
    "smoke": ("smoke, SQLite", SMOKE, False),
}


def main(wanted: list[str]) -> int:
    """All rings, those named, or the storms (`soak`). Returns the exit code."""
    unknown = set(wanted) - RINGS.keys() - {"soak"}
    if unknown:
        print(f"no ring is called {min(unknown)}: there are {', '.join(RINGS)} and soak", file=sys.stderr)  # noqa: T201
        return 1
    with postgres_server() as url:
        if wanted == ["soak"]:
            return run("soak, PostgreSQL", ["tests"], database_url=url, extra=["-m", "soak", "-s"])
        codes = []
        for label, paths, on_postgres in (RINGS[name] for name in wanted or RINGS):
            codes.append(run(label, paths, database_url=url if on_postgres else "", extra=[]))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
