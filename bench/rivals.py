"""The gateways ours is measured beside, each from PyPI in an environment of its own below .cache/rivals.

They are started as their documents say, with logs quiet, one engine behind them and nothing optional on.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / ".cache" / "rivals"


@dataclass(frozen=True)
class Rival:
    name: str
    package: str
    arguments: Callable[[Path, int, int], list[str]]
    """(a folder of its own, its port, the engine's port) -> command line after bin/."""
    ready_path: str = "/health"

    def install(self) -> None:
        """Once; nothing of it reaches our own environments."""
        home = FOLDER / self.name
        stamp = home / self.package.replace("/", "_")
        if stamp.exists():
            return
        print(f"installing {self.package} ...", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        subprocess.run([str(home / "bin" / "pip"), "install", "--quiet", self.package], check=True, capture_output=True)
        stamp.touch()

    def command(self, folder: Path, port: int, engine_port: int) -> list[str]:
        program, *rest = self.arguments(folder, port, engine_port)
        return [str(FOLDER / self.name / "bin" / program), *rest]


def _vllm_router(_folder: Path, port: int, engine_port: int) -> list[str]:
    return [
        *("vllm-router", "--host", "127.0.0.1", "--port", str(port), "--worker-urls", f"http://127.0.0.1:{engine_port}"),
        *("--policy", "round_robin", "--log-level", "error", "--prometheus-port", str(port + 1)),
        *("--max-concurrent-requests", "4096"),
    ]


def _smg(_folder: Path, port: int, engine_port: int) -> list[str]:
    return [
        *("smg", "launch", "--host", "127.0.0.1", "--port", str(port), "--worker-urls", f"http://127.0.0.1:{engine_port}"),
        *("--policy", "round_robin", "--log-level", "error", "--prometheus-port", str(port + 1)),
    ]


def _litellm(folder: Path, port: int, engine_port: int) -> list[str]:
    config = folder / "litellm.yaml"
    config.write_text(
        "model_list:\n"
        "  - model_name: mock\n"
        "    litellm_params:\n"
        f"      {{model: openai/mock, api_base: 'http://127.0.0.1:{engine_port}/v1', api_key: none}}\n"
        "litellm_settings: {telemetry: false}\n"
        "general_settings: {master_key: sk-bench}\n"
    )
    return ["litellm", "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]


RIVALS = (
    Rival("vllm-router", "vllm-router==0.1.17", _vllm_router),
    Rival("smg", "smg==1.13.0", _smg),
    Rival("litellm", "litellm[proxy]==1.108.7", _litellm, ready_path="/health/liveliness"),
)
