"""Run the rings of tests one after another (`make test`), some of them (`python -m tests.rings edges smoke`), or the storms.

services   policy, services and parts: on SQLite, and again on a real PostgreSQL
edges      whole processes, real sockets and real vLLM: on PostgreSQL
smoke      one request from end to end: on SQLite, the embedded default
"""

import os
import subprocess
import sys
import tempfile
import time

from tests.fakes.postgres import postgres_server

# Real vLLM lives here among the services' tests, which mirror the packages; it runs with the edges.
ENGINES = "tests/inference/node/test_real_engines.py"
SERVICES = [
    f"--ignore={ENGINES}",
    "tests/test_architecture.py",
    "tests/headway",
    "tests/tenants",
    "tests/workers",
    "tests/billing",
    "tests/inference",
]
EDGES = [ENGINES, "tests/contract", "tests/fuzz", "tests/e2e", "tests/chaos"]
SMOKE = ["tests/smoke"]


class Run:
    """One ring under way. Its output is shown when it has ended, so that two at once do not mix."""

    def __init__(self, label: str, paths: list[str], *, database_url: str) -> None:
        self.label, self.started_s = label, time.monotonic()
        self.output = tempfile.TemporaryFile()  # noqa: SIM115  closed in `wait`
        command = [sys.executable, "-m", "pytest", "-q", *paths]
        self.process = subprocess.Popen(command, env=_environment(database_url), stdout=self.output, stderr=subprocess.STDOUT)

    def wait(self) -> int:
        code = self.process.wait()
        with self.output as output:
            output.seek(0)
            print(f"\n=== {self.label} ===\n{output.read().decode(errors='replace')}", flush=True)  # noqa: T201
        _say_end(self.label, code, self.started_s)
        return code


def _environment(database_url: str) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
    environment |= {name: os.environ[name] for name in ("HEADWAY_ENGINES_DIR", "HEADWAY_ENGINE_KIND") if name in os.environ}
    environment["DATABASE_URL"] = database_url
    return environment


def _say_end(label: str, code: int, started_s: float) -> None:
    took_s = time.monotonic() - started_s
    print(f"=== {label}: {'passed' if code == 0 else 'FAILED'} in {took_s:.0f} s ===", flush=True)  # noqa: T201


def run(label: str, paths: list[str], *, database_url: str, extra: list[str]) -> int:
    print(f"\n=== {label} ===", flush=True)  # noqa: T201
    started_s = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", *extra, *paths]
    code = subprocess.run(command, env=_environment(database_url)).returncode
    _say_end(label, code, started_s)
    return code


RINGS = {
    "sqlite": ("services, SQLite", SERVICES, False),
    "postgres": ("services, PostgreSQL", SERVICES, True),
    "edges": ("edges, PostgreSQL", EDGES, True),
    "smoke": ("smoke, SQLite", SMOKE, False),
}


PAIR = ("sqlite", "postgres")


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
        names = list(wanted or RINGS)
        if {"sqlite", "postgres"} <= set(names):  # mostly waiting: side by side they take half the time
            both = [Run(RINGS[name][0], RINGS[name][1], database_url=url if RINGS[name][2] else "") for name in PAIR]
            codes += [each.wait() for each in both]
            names = [name for name in names if name not in PAIR]
        for label, paths, on_postgres in (RINGS[name] for name in names):
            codes.append(run(label, paths, database_url=url if on_postgres else "", extra=[]))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
