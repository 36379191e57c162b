"""What gateways cost: CPU per request and per token event, TTFT added, memory; ours and its rivals before one engine.

    python -m bench.gateway [--seconds 6] [--rounds 3] [--only NAME ...]

All gateways run side by side before the same stand-in engine and take turns under load, `rounds` times; figures are
medians. CPU is user + system time of a gateway's process tree over its turn. TTFT added is the difference to a direct run
in the same round. Ours runs with the whole product path on: keys, admission, journal, ledger, change feed, metrics.
"""

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench.process_tree import cpu_s, pss_mb
from bench.rivals import RIVALS

ROOT = Path(__file__).resolve().parents[1]
EVENTS = 50
ENGINE_PORT = 9392
WARM_UP_S = 1.5


@dataclass(frozen=True)
class Case:
    label: str
    streams: int
    seed: int = 1
    """0: the engine sends all events at once."""
    prompt: str = "hi"

    def body(self) -> bytes:
        messages = [{"role": "user", "content": self.prompt}]
        asked = {"model": "mock", "stream": True, "max_tokens": EVENTS, "seed": self.seed, "messages": messages}
        return json.dumps(asked).encode()


CASES = (
    Case("1 stream", 1),
    Case("64 streams", 64),
    Case("256 streams", 256),
    Case("burst, 16 streams", 16, seed=0),
    Case("4,000-token prompts, 64 streams", 64, prompt="four thousand words " * 1334),
)


@dataclass
class Gateway:
    name: str
    port: int
    authorization: str
    process: subprocess.Popen[bytes]


@dataclass(frozen=True)
class Measured:
    us_per_request: float
    us_per_event: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    pss_mb: float
    errors: float

    @classmethod
    def median(cls, runs: list["Measured"]) -> "Measured":
        return cls(*(statistics.median(column) for column in zip(*(run.values() for run in runs), strict=True)))

    def values(self) -> tuple[float, ...]:
        return self.us_per_request, self.us_per_event, self.ttft_p50_ms, self.ttft_p99_ms, self.pss_mb, self.errors


def load(port: int, case: Case, seconds: float, key: str, folder: Path) -> dict[str, float]:
    body = folder / "body.json"
    body.write_bytes(case.body())
    arguments = [str(port), str(case.streams), str(seconds), "/v1/chat/completions", str(body), key]
    command = [sys.executable, "-m", "bench.load", *arguments]
    found: dict[str, float] = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    return found


def measure(gateway: Gateway, case: Case, seconds: float, folder: Path) -> Measured:
    direct = load(ENGINE_PORT, case, seconds / 2, "", folder)
    load(gateway.port, case, WARM_UP_S, gateway.authorization, folder)
    before_s = cpu_s(gateway.process.pid)
    through = load(gateway.port, case, seconds, gateway.authorization, folder)
    used_us = (cpu_s(gateway.process.pid) - before_s) * 1e6
    return Measured(
        us_per_request=used_us / max(through["requests"], 1),
        us_per_event=used_us / max(through["events"], 1),
        ttft_p50_ms=through["ttft_p50_ms"] - direct["ttft_p50_ms"],
        ttft_p99_ms=through["ttft_p99_ms"] - direct["ttft_p99_ms"],
        pss_mb=pss_mb(gateway.process.pid),
        errors=through["errors"],
    )


def wait_ready(url: str, process: subprocess.Popen[bytes], limit_s: float) -> None:
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url).status_code == 200:
                return
        time.sleep(0.2)
    raise SystemExit(f"{url} was not ready in {limit_s:g} s; what was started: {process.args!r}")


class Fleet:
    """Starts what is measured; `stack` ends it."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.environment = {
            **os.environ,
            "HEADWAY_HOME": str(folder / "headway"),
            "HEADWAY_GATEWAY_PORT": "9390",
            "HEADWAY_METRICS_PORT": "9391",
        }
        self.environment.pop("DATABASE_URL", None)

    def start(self, command: list[str], log: str) -> subprocess.Popen[bytes]:
        output = self.stack.enter_context((self.folder / log).open("wb"))
        process = subprocess.Popen(command, env=self.environment, cwd=ROOT, stdout=output, stderr=output)
        self.stack.callback(process.wait)
        self.stack.callback(process.terminate)
        return process

    def manage(self, *arguments: str) -> str:
        command = [sys.executable, str(ROOT / "manage.py"), *arguments]
        return subprocess.run(command, env=self.environment, check=True, capture_output=True, text=True).stdout.strip()

    def engine(self) -> None:
        process = self.start([sys.executable, "-m", "bench.stand_in", str(ENGINE_PORT), "20"], "engine.log")
        wait_ready(f"http://127.0.0.1:{ENGINE_PORT}/health", process, 10)

    def ours(self) -> Gateway:
        self.manage("migrate")
        self.manage("create_tenant", "bench")
        key = self.manage("issue_key", "bench", "--name", "bench")
        self.manage("register_model", "mock", "--max-in-flight", "4096")
        self.manage("register_replica", "--model", "mock", "--url", f"http://127.0.0.1:{ENGINE_PORT}", "--kind", "vllm")
        process = self.start([sys.executable, "manage.py", "gateway"], "ours.log")
        wait_ready("http://127.0.0.1:9390/readyz", process, 20)
        return Gateway("headway", 9390, key, process)

    def rivals(self, only: list[str]) -> Iterator[Gateway]:
        for number, rival in enumerate(RIVALS, start=1):
            if only and rival.name not in only:
                continue
            rival.install()
            port = 9400 + 10 * number
            process = self.start(rival.command(self.folder, port, ENGINE_PORT), f"{rival.name}.log")
            wait_ready(f"http://127.0.0.1:{port}{rival.ready_path}", process, 120)
            yield Gateway(rival.name, port, "sk-bench", process)


def report(gateways: list[Gateway], results: dict[tuple[str, str], list[Measured]]) -> None:
    for case in CASES:
        found = {
            gateway.name: results[case.label, gateway.name] for gateway in gateways if (case.label, gateway.name) in results
        }
        medians = {name: Measured.median(runs) for name, runs in found.items()}
        if "headway" not in medians:
            continue
        print(f"\n{case.label} ({EVENTS} events each)\n")
        print("| gateway | CPU µs / request | CPU µs / event | ours / it | TTFT added p50 ms | p99 ms | PSS MB | errors |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for name, median in medians.items():
            ratio = medians["headway"].us_per_event / median.us_per_event
            print(
                f"| {name} | {median.us_per_request:.0f} | {median.us_per_event:.1f} | {ratio:.2f} "
                f"| {median.ttft_p50_ms:.1f} | {median.ttft_p99_ms:.1f} | {median.pss_mb:.0f} | {median.errors:.0f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], help="rivals to run; none named: all")
    parser.add_argument("--no-rivals", action="store_true")
    options = parser.parse_args()
    results: dict[tuple[str, str], list[Measured]] = {}
    with tempfile.TemporaryDirectory(prefix="hw-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        fleet = Fleet(folder, stack)
        fleet.engine()
        gateways = [fleet.ours(), *(() if options.no_rivals else fleet.rivals(options.only))]
        try:
            for number in range(options.rounds):
                for case, gateway in itertools.product(CASES, gateways):
                    print(f"round {number + 1}: {case.label}, {gateway.name}", file=sys.stderr, flush=True)
                    found = measure(gateway, case, options.seconds, folder)
                    results.setdefault((case.label, gateway.name), []).append(found)
        finally:  # also what there is when it is ended early
            report(gateways, results)


if __name__ == "__main__":
    main()
