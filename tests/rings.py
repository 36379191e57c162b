"""Run the rings of tests one after another (`make test`), some of them (`python -m tests.rings edges smoke`), or the storms.

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

from tests.fakes.postgres import postgres_server
from tests.leaks import leaks

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
    "tests/dashboard",
]
EDGES = [ENGINES, "tests/e2e", "tests/chaos"]
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

    def ended(self, code: int) -> int:
        """What is found counts as a failure."""
        found = leaks(self.left)
        for line in found:
            print(f"an API key lies in {line}")  # noqa: T201
        took_s = time.monotonic() - self.started_s
        passed = code == 0 and not found
        print(f"=== {self.label}: {'passed' if passed else 'FAILED'} in {took_s:.0f} s ===", flush=True)  # noqa: T201
        if passed:
            shutil.rmtree(self.left, ignore_errors=True)
        return code or bool(found)


class Run:
    """One ring under way. Its output is shown when it has ended, so that two at once do not mix."""

    def __init__(self, label: str, paths: list[str], *, database_url: str) -> None:
        self.ring = ring = Ring(label, paths, database_url=database_url)
        self.output = tempfile.TemporaryFile()  # noqa: SIM115  closed in `wait`
        self.process = subprocess.Popen(ring.command, env=ring.environment, stdout=self.output, stderr=subprocess.STDOUT)

    def wait(self) -> int:
        code = self.process.wait()
        with self.output as output:
            output.seek(0)
            print(f"\n=== {self.ring.label} ===\n{output.read().decode(errors='replace')}", flush=True)  # noqa: T201
        return self.ring.ended(code)


def _environment(database_url: str) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
    environment |= {name: os.environ[name] for name in ("HEADWAY_ENGINES_DIR", "HEADWAY_ENGINE_KIND") if name in os.environ}
    environment["DATABASE_URL"] = database_url
    return environment


def run(label: str, paths: list[str], *, database_url: str, extra: list[str]) -> int:
    print(f"\n=== {label} ===", flush=True)  # noqa: T201
    ring = Ring(label, [*extra, *paths], database_url=database_url)
    return ring.ended(subprocess.run(ring.command, env=ring.environment).returncode)


RINGS = {
    "sqlite": ("services, SQLite", SERVICES, False),
    "postgres": ("services, PostgreSQL", ["--database-only", *SERVICES], True),
    "browser": ("browser, PostgreSQL", BROWSER, True),
    "edges": ("edges, PostgreSQL", EDGES, True),
    "smoke": ("smoke, SQLite", SMOKE, False),
}


# Side by side: they are mostly waiting. The edges need the machine for themselves.
LANES = (("sqlite",), ("postgres", "smoke", "browser"))


def side_by_side(lanes: list[list[str]], url: str) -> list[int]:
    """Each lane's rings one after another, the lanes at once."""

    def lane(names: list[str]) -> int:
        codes = []
        for label, paths, on_postgres in (RINGS[name] for name in names):
            codes.append(Run(label, paths, database_url=url if on_postgres else "").wait())
        return max(codes)

    with ThreadPoolExecutor(len(lanes)) as threads:
        return list(threads.map(lane, lanes))


def main(wanted: list[str]) -> int:
    """All rings, those named, or the storms (`soak`). Returns the exit code."""
    unknown = set(wanted) - RINGS.keys() - {"soak"}
    if unknown:
        print(f"no ring is called {min(unknown)}: there are {', '.join(RINGS)} and soak", file=sys.stderr)  # noqa: T201
        return 1
    with postgres_server() as url:
        if wanted == ["soak"]:
            return run("soak, PostgreSQL", ["tests"], database_url=url, extra=["-m", "soak", "-s"])
        names = list(wanted or RINGS)
        lanes = [found for lane in LANES if (found := [name for name in lane if name in names])]
        codes = side_by_side(lanes, url) if len(lanes) > 1 else []
        rest = [name for name in names if not codes or not any(name in lane for lane in LANES)]
        for label, paths, on_postgres in (RINGS[name] for name in rest):
            codes.append(run(label, paths, database_url=url if on_postgres else "", extra=[]))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
