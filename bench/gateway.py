"""What a gateway costs: CPU per request and per token event, and TTFT added, in front of the stand-in engine.

    python -m bench.gateway [--seconds 8]

The whole product path is on: keys, admission, journal, ledger, metrics. Figures are CPU seconds (user + system) of the
gateway's process over a load interval, so that a noisy machine matters little; direct runs are interleaved.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[1]
EVENTS = 50
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def pss_mb(pid: int) -> float:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(rollup.split("\nPss:")[1].split()[0]) / 1024


class Bench:
    def __init__(self, home: Path, seconds: float) -> None:
        self.home, self.seconds = home, seconds
        self.environment = {
            **os.environ,
            "HEADWAY_HOME": str(home),
            "HEADWAY_GATEWAY_PORT": "9390",
            "HEADWAY_METRICS_PORT": "9391",
        }
        self.environment.pop("DATABASE_URL", None)
        self.body = home / "body.json"
        self.body.write_text(json.dumps({"model": "mock", "stream": True, "messages": [{"role": "user", "content": "hi"}]}))

    def manage(self, *arguments: str) -> str:
        command = [sys.executable, str(ROOT / "manage.py"), *arguments]
        return subprocess.run(command, env=self.environment, check=True, capture_output=True, text=True).stdout.strip()

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, *command], env=self.environment, cwd=ROOT, stderr=subprocess.DEVNULL)

    def load(self, port: int, streams: int, seconds: float, key: str) -> dict[str, float]:
        command = [
            sys.executable,
            "-m",
            "bench.load",
            str(port),
            str(streams),
            str(seconds),
            "/v1/chat/completions",
            str(self.body),
            key,
        ]
        found: dict[str, float] = json.loads(
            subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        )
        return found

    def case(self, label: str, streams: int, step_ms: int, gateway: int, key: str) -> None:
        engine = self.start("-m", "bench.stand_in", "9392", str(EVENTS), str(step_ms))
        try:
            time.sleep(1)
            direct = self.load(9392, streams, self.seconds / 2, "")
            self.load(9390, streams, 2, key)
            before_s = cpu_s(gateway)
            through = self.load(9390, streams, self.seconds, key)
            used_us = (cpu_s(gateway) - before_s) * 1e6
        finally:
            engine.kill()
            engine.wait()
        print(
            f"| {label} | {used_us / through['requests']:.0f} | {used_us / through['events']:.1f} "
            f"| {through['ttft_p50_ms'] - direct['ttft_p50_ms']:.1f} | {through['ttft_p99_ms'] - direct['ttft_p99_ms']:.1f} "
            f"| {pss_mb(gateway):.0f} | {through['errors']:.0f} |",
            flush=True,
        )

    def run(self) -> None:
        self.manage("migrate")
        self.manage("create_tenant", "bench")
        key = self.manage("issue_key", "bench", "--name", "bench")
        self.manage("register_model", "mock", "--max-in-flight", "4096")
        engine = self.start("-m", "bench.stand_in", "9392", "1", "1")
        time.sleep(1)
        self.manage("register_replica", "--model", "mock", "--url", "http://127.0.0.1:9392", "--kind", "vllm")
        engine.kill()
        engine.wait()
        gateway = self.start("manage.py", "gateway")
        try:
            wait_ready("http://127.0.0.1:9390/readyz")
            print(
                f"| {EVENTS} events a stream | CPU µs / request | CPU µs / event | TTFT added p50 ms | p99 ms | PSS MB | err. |"
            )
            print("| --- | --- | --- | --- | --- | --- | --- |")
            for label, streams, step_ms in (
                ("1 stream", 1, 20),
                ("64 streams", 64, 20),
                ("256 streams", 256, 20),
                ("burst, 16", 16, 0),
            ):
                self.case(label, streams, step_ms, gateway.pid, key)
        finally:
            gateway.terminate()
            gateway.wait()


def wait_ready(url: str) -> None:
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"{url} was not ready in 20 s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    with tempfile.TemporaryDirectory(prefix="hw-bench-") as folder:
        Bench(Path(folder), parser.parse_args().seconds).run()


if __name__ == "__main__":
    main()
