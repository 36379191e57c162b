"""Run the rings of tests (`make test`), some of them (`python -m tests.rings edges smoke`), or the storms.

services   policy, services and parts: on SQLite, and what a database takes part in again on a real PostgreSQL
edges      whole processes, real sockets and real vLLM: on PostgreSQL
browser    pages in a real browser, and random requests to what the OpenAPI documents promise: on PostgreSQL
smoke      one request from end to end: on SQLite, the embedded default

What a ring leaves behind (logs of its processes and of its tests, databases, journals) is searched for API keys
(tests/leaks.py), and removed when there are none and all tests passed.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit, urlunsplit

import psycopg

from tests.fakes.postgres import postgres_server
from tests.leaks import leaks

# Real vLLM and real dispatchers live among the services' tests, which mirror the packages; they run with the edges.
PROCESSES = ["tests/inference/node/test_real_engines.py", "tests/inference/dispatch/test_takeover.py"]
SERVICES = [
    *(f"--ignore={path}" for path in PROCESSES),
    "tests/test_architecture.py",
    "tests/headway",
    "tests/tenants",
    "tests/workers",
    "tests/billing",
    "tests/inference",
    "tests/dashboard",
]
EDGES = [*PROCESSES, "tests/e2e", "tests/chaos"]
# The browser last: Playwright keeps a loop running in the thread of the tests until they end.
BROWSER = ["tests/contract", "tests/fuzz", "tests/browser"]
SMOKE = ["tests/smoke"]
# A short path: sockets lie below it, and the name of one has room for 107 characters.
LEFT = Path(tempfile.gettempdir()) / f"rings-{os.getpid()}"


class Ring:
    """The command of one ring, and the folder of what it leaves."""

    def __init__(self, label: str, arguments: list[str], *, database_url: str) -> None:
        self.label, self.started_s = label, time.monotonic()
        self.left = LEFT / re.sub(r"[^a-z]+", "-", label.lower())
        shutil.rmtree(self.left, ignore_errors=True)
        self.left.mkdir(parents=True)
        kept = [f"--basetemp={self.left / 'tmp'}", f"--log-file={self.left / 'tests.log'}", "--log-file-level=DEBUG"]
        self.command = [sys.executable, "-m", "pytest", "-q", "--durations=12", "--durations-min=5", *kept, *arguments]
        self.environment = _environment(database_url)

    def run(self, output: IO[bytes] | None) -> int:
        """Its exit code; what is found that must not lie about counts as a failure."""
        process = subprocess.Popen(self.command, env=self.environment, stdout=output, stderr=output and subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        code = process.returncode = os.waitstatus_to_exitcode(status)
        if output is not None:
            output.seek(0)
            print(f"\n=== {self.label} ===\n{output.read().decode(errors='replace')}", flush=True)  # noqa: T201
        found = leaks(self.left)
        for line in found:
            print(f"an API key lies in {line}")  # noqa: T201
        passed = code == 0 and not found
        took = f"{time.monotonic() - self.started_s:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of processors"
        print(f"=== {self.label}: {'passed' if passed else 'FAILED'} in {took} ===", flush=True)  # noqa: T201
        if passed:
            shutil.rmtree(self.left, ignore_errors=True)
        return code or bool(found)


def _environment(database_url: str) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
    environment |= {name: os.environ[name] for name in ("HEADWAY_ENGINES_DIR", "HEADWAY_ENGINE_KIND") if name in os.environ}
    environment["DATABASE_URL"] = database_url
    return environment


RINGS = {
    "sqlite": ("services, SQLite", SERVICES, False),
    "postgres": ("services, PostgreSQL", ["--database-only", *SERVICES], True),
    "browser": ("browser, PostgreSQL", BROWSER, True),
    "edges": ("edges, PostgreSQL", EDGES, True),
    "smoke": ("smoke, SQLite", SMOKE, False),
}
# Side by side; the rings of one lane follow each other. The edges wait more than they reckon: half a processor.
LANES = (("edges",), ("sqlite", "smoke"), ("postgres", "browser"))


def run(name: str, server_url: str, output: IO[bytes] | None) -> int:
    label, paths, on_postgres = RINGS[name]
    url = _database(server_url, f"ring_{name}") if on_postgres else ""
    return Ring(label, paths, database_url=url).run(output)


def _database(server_url: str, name: str) -> str:
    """One of the ring's own, for what is called after it (`test_...`) to be its own, too."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))


def side_by_side(lanes: list[list[str]], server_url: str) -> int:
    """Each lane's rings one after another, the lanes at once. What a ring prints is shown when it has ended, unmixed."""

    def lane(names: list[str]) -> int:
        codes = []
        for name in names:
            with tempfile.TemporaryFile() as output:
                codes.append(run(name, server_url, output if len(lanes) > 1 else None))
        return max(codes)

    with ThreadPoolExecutor(len(lanes)) as threads:
        return max(threads.map(lane, lanes))


def main(wanted: list[str]) -> int:
    """All rings, those named, or the storms (`soak`). Returns the exit code."""
    unknown = set(wanted) - RINGS.keys() - {"soak"}
    if unknown:
        print(f"no ring is called {min(unknown)}: there are {', '.join(RINGS)} and soak", file=sys.stderr)  # noqa: T201
        return 1
    with postgres_server() as url:
        if wanted == ["soak"]:
            return Ring("soak, PostgreSQL", ["tests", "-m", "soak", "-s"], database_url=url).run(None)
        names = wanted or list(RINGS)
        return side_by_side([found for lane in LANES if (found := [name for name in lane if name in names])], url)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
