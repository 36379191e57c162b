"""Releases on real engines under steady load: a good one is promoted, three bad ones are rolled back, no request fails.

Two small engines of two processors' worth: what is measured is that nothing is lost and how soon a breach is acted on, by
the real sweep (beat, worker), agent and gateway. `python -m tests.rings soak`, or this file with `-m soak -s`.
"""

import asyncio
import json
import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from inference.engines.environments import default_environment, engines_dir
from tests.chaos.breach_times import breach_times
from tests.e2e.conftest import TINY
from tests.e2e.installation import WEIGHTS, Installation, eventually

pytestmark = pytest.mark.soak

ENGINE_ARGS = "--max-model-len 2048 --max-num-seqs 32"
REQUESTS_PER_S = 6
BAD_ENVIRONMENT = "vllm-cpu-bad"
ROLLED_BACK_WITHIN_S = 30.0
BAD = Path(__file__).parent / "bad_engines"
CREATE = ("--steps", "50", "--step-s", "5", "--min-samples", "80", "--window-s", "600", "--start", "--json")
NOISY = ("--gate", "ttft_p95_ratio=off", "--gate", "inter_token_p95_ratio=off")
"""On a machine that others use, too, the slowest twentieth says nothing of a version."""


@dataclass
class Load:
    """Steady requests, each a conversation of its own, until it is stopped."""

    url: str
    key: str
    answered: int = 0
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=120)

    async def _run(self) -> None:
        headers = {"authorization": f"Bearer {self.key}"}
        async with httpx.AsyncClient(base_url=self.url, headers=headers, timeout=90) as client, asyncio.TaskGroup() as group:
            number = 0
            while not self._stop.is_set():
                number += 1
                group.create_task(self._ask(client, number))
                await asyncio.sleep(1 / REQUESTS_PER_S)

    async def _ask(self, client: httpx.AsyncClient, number: int) -> None:
        body = {
            "model": TINY,
            "messages": [{"role": "user", "content": f"conversation {number}: hello"}],
            "max_tokens": 24,
            "stream": True,
        }
        try:
            answer = await client.post("/v1/chat/completions", json=body)
        except httpx.HTTPError as error:
            self.failures.append(repr(error))
            return
        if answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n") and '"error"' not in answer.text:
            self.answered += 1
        else:
            self.failures.append(f"{answer.status_code}: {answer.text[-300:]}")


@dataclass
class Service:
    installation: Installation
    load: Load

    def release(self, *version: str, more: tuple[str, ...] = ()) -> dict[str, Any]:
        """Register a version and start its rollout."""
        words = ("--dtype", "float32", "--golden", str(self.installation.home / "golden.json"))
        number = json.loads(self.installation.manage("register_version", TINY, *words, *version, "--json"))["version"]
        asked = self.installation.manage("rollout", "create", TINY, "--to", f"v{number}", *CREATE, *NOISY, *more)
        found: dict[str, Any] = json.loads(asked)
        return found

    def shown(self, rollout: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.installation.manage("rollout", "show", str(rollout["id"]), "--json"))
        return found

    def until(self, rollout: dict[str, Any], *states: str, within_s: float) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def is_there() -> bool:
            found.update(self.shown(rollout))
            return found["state"] in states

        eventually(is_there, within_s=within_s, every_s=1, what=f"{states}, not {self.shown(rollout)}")
        return found

    def live_versions(self) -> set[str]:
        return {replica["version"] for replica in self.installation.replicas(TINY)}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("releases")
    installation = Installation(
        folder, database_url=os.environ.get("DATABASE_URL", ""), HEADWAY_ENGINES_DIR=str(engines_of(folder / "engines"))
    )
    load = None
    try:
        installation.migrate()
        installation.manage("create_tenant", "acme")
        key = installation.manage("issue_key", "acme", "--name", "ci")
        for daemon in ("redis", "worker", "beat", "node"):
            installation.start(daemon)
        installation.start_gateway()
        tiny = WEIGHTS / "tiny"
        installation.manage("make_tiny_model", str(tiny), timeout_s=300)
        golden = installation.home / "golden.json"
        golden.write_text(json.dumps([{"prompt": "The capital of France is", "expect": "", "max_tokens": 1}]))
        installation.manage(
            "register_model", TINY, "--weights", str(tiny), "--dtype", "float32", f"--engine-args={ENGINE_ARGS}",
            "--golden", str(golden), "--engine-environment", default_environment(),
        )  # fmt: skip
        installation.manage("scale", TINY, "--replicas", "1")
        installation.wait_ready(TINY)
        load = Load(installation.url, key)
        yield Service(installation, load)
    finally:
        if load is not None:
            load.stop()
        installation.close()


def engines_of(folder: Path) -> Path:
    """The real environment, and another release of it: the same interpreter with our middlewares on its path."""
    folder.mkdir()
    real = engines_dir() / default_environment()
    (folder / real.name).symlink_to(real)
    binaries = folder / BAD_ENVIRONMENT / "bin"
    binaries.mkdir(parents=True)
    script = binaries / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={BAD} exec {real / "bin" / "python"} "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return folder


def damaged(folder: Path) -> Path:
    """The tiny model with 4 KiB of a layer that every token goes through overwritten by ones (NaN in float32)."""
    shutil.copytree(WEIGHTS / "tiny", folder)
    weights = next(folder.glob("*.safetensors"))
    content = bytearray(weights.read_bytes())
    header_bytes = int.from_bytes(content[:8], "little")
    begin, _end = json.loads(content[8 : 8 + header_bytes])["model.layers.0.mlp.down_proj.weight"]["data_offsets"]
    at = 8 + header_bytes + begin
    content[at : at + 4096] = b"\xff" * 4096
    weights.write_bytes(content)
    return folder


def took_s(shown: dict[str, Any]) -> float:
    """From the request that was the candidate's first to the breach that was acted on."""
    events = [event for event in shown["events"] if event["kind"] == "share"]
    began = datetime.fromisoformat(events[-1]["at"])
    return (datetime.fromisoformat(shown["breached_at"]) - began).total_seconds()


def tell(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201  the figures of a soak run


def test_a_good_release_is_promoted_and_taken_back_without_a_failed_request(service: Service) -> None:
    began_s = time.monotonic()
    rollout = service.release("--weights", str(WEIGHTS / "tiny"), "--engine-args=--max-model-len 2048 --max-num-seqs 16")
    service.until(rollout, "promoted", within_s=420)
    tell(f"good release: promoted after {time.monotonic() - began_s:.0f} s, {service.load.answered} answered")
    service.installation.manage("rollout", "rollback", str(rollout["id"]), "--reason", "as a test")
    service.until(rollout, "rolled_back", within_s=120)
    eventually(lambda: service.live_versions() == {"v1"}, within_s=60, every_s=1, what="only v1 is left")
    assert service.load.failures == []


@pytest.mark.parametrize("fault", ["damaged weights", "failing one in ten", "slow"])
def test_a_bad_release_is_rolled_back_by_itself_without_a_failed_request(service: Service, fault: str, tmp_path: Path) -> None:
    before, tiny = service.load.answered, str(WEIGHTS / "tiny")
    in_bad = ("--weights", tiny, "--engine-environment", BAD_ENVIRONMENT)
    version = {
        "damaged weights": ("--weights", str(damaged(tmp_path / "weights")), f"--engine-args={ENGINE_ARGS}"),
        "failing one in ten": (*in_bad, f"--engine-args={ENGINE_ARGS} --middleware headway_bad_engine.FailsOneInTen"),
        "slow": (*in_bad, f"--engine-args={ENGINE_ARGS} --middleware headway_bad_engine.IsSlow"),
    }[fault]
    rollout = service.release(*version)
    shown = service.until(rollout, "rolled_back", "promoted", within_s=420)
    assert shown["state"] == "rolled_back", shown["reason"]
    if fault == "damaged weights":
        assert not [event for event in shown["events"] if event["kind"] == "share"], "it never got a request"
        tell(f"{fault}: {shown['reason']}")
    else:
        times = breach_times(service.installation, TINY, shown)
        tell(
            f"{fault}: rolled back {took_s(shown):.0f} s after its first share: {shown['reason']}; the evidence had crossed "
            f"its gate {times.acted_on_s:.1f} s before that, and {times.share_gone_s:.1f} s after the crossing no request "
            "went to the candidate any more"
        )
        assert times.share_gone_s <= ROLLED_BACK_WITHIN_S
    eventually(lambda: service.live_versions() == {"v1"}, within_s=60, every_s=1, what="its engine is gone")
    assert service.load.answered > before
    assert service.load.failures == []
