"""What kind of machine this is: log-probabilities are compared only between machines of one kind."""

import functools
import platform
import shutil
import subprocess
from pathlib import Path

from inference.engines.environments import EngineKind

# The widest first: the engine takes the best one there is, and rounds accordingly.
CPU_FEATURES = ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "asimd")
SMI_TIMEOUT_S = 20


@functools.cache
def machine_kind(kind: EngineKind) -> str:
    """Like cpu-x86_64-avx512_bf16, or the GPU's name like NVIDIA-H100-80GB-HBM3."""
    return _gpu_name() or "cuda-unknown" if kind is EngineKind.CUDA else cpu_kind(Path("/proc/cpuinfo").read_text())


def cpu_kind(cpuinfo: str) -> str:
    features = set(cpuinfo.split())
    widest = next((feature for feature in CPU_FEATURES if feature in features), "plain")
    return f"cpu-{platform.machine()}-{widest}"


def number_format(dtype: str, machine_kind: str) -> str:
    """The `--dtype` an engine is started with: `auto`, which takes the weights' own, is float32 on a CPU that has no
    instructions for bfloat16: prompts in bfloat16 take several times as long there (bench/README.md, "A real model")."""
    if dtype == "auto" and machine_kind.startswith("cpu-") and not machine_kind.endswith("bf16"):
        return "float32"
    return dtype


@functools.cache
def _gpu_name() -> str:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return ""
    command = [smi, "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SMI_TIMEOUT_S)
    return done.stdout.strip().splitlines()[0].replace(" ", "-") if done.returncode == 0 and done.stdout.strip() else ""


@functools.cache
def accelerator() -> EngineKind:
    """Which engines this machine runs."""
    return EngineKind.CUDA if _gpu_name() else EngineKind.CPU


@functools.cache
def this_machine() -> str:
    """For the heartbeat: the GPU if there is one."""
    return _gpu_name() or machine_kind(EngineKind.CPU)
