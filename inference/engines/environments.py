"""Engine environments: named folders with an interpreter that can import one release of one engine.

A model version names the one it runs in, so a new engine release rolls out like a new model version. What kind of
machine an environment is for stands in its name: `vllm-cpu-0.32.0`, `vllm-cuda-0.32.0`.
"""

import re
import shutil
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from headway import env
from headway.errors import ConfigurationError

CHECKOUT = Path(__file__).resolve().parents[2]
RELEASE = "0.32.0"


class EngineKind(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True)
class EngineEnvironment:
    name: str
    folder: Path
    kind: EngineKind

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"


def kind_of(name: str) -> EngineKind | None:
    """The kind of machine an environment of that name is for; None where it names none, or several."""
    kinds = [kind for kind in EngineKind if f"-{kind}-" in f"-{name}-"]
    return kinds[0] if len(kinds) == 1 else None


def installed(engines_dir: Path) -> list[str]:
    """Names of the environments that are there."""
    return sorted(path.parent.parent.name for path in engines_dir.glob("*/bin/python"))


def find_environment(name: str, engines_dir: Path) -> EngineEnvironment:
    """The environment of that name below `engines_dir`. Raises ConfigurationError with what is wrong with it."""
    kind = kind_of(name)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", name) or kind is None:
        raise ConfigurationError(f"{name!r} is no name of an engine environment: it must look like vllm-cpu-0.32.0")
    environment = EngineEnvironment(name=name, folder=engines_dir / name, kind=kind)
    if not environment.python.exists():
        known = ", ".join(installed(engines_dir)) or "none"
        raise ConfigurationError(f"there is no engine environment {name!r} below {engines_dir} (there: {known})")
    return environment


def engines_dir() -> Path:
    """HEADWAY_ENGINES_DIR, or .engines in the checkout."""
    return env.folder("HEADWAY_ENGINES_DIR", CHECKOUT / ".engines")


def default_environment() -> str:
    """The name of this machine's environment: the one that is installed, else the one bootstrap.py would make."""
    kind = EngineKind.CUDA if shutil.which("nvidia-smi") else EngineKind.CPU
    wanted = f"vllm-{kind}-{RELEASE}"
    there = sorted(path.parent.parent.name for path in engines_dir().glob("vllm-*/bin/python"))
    return wanted if wanted in there or not there else there[-1]
