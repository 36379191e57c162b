"""Two real engines of one model for the whole folder: they are started once, and each module starts its own gateway."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from headway.home import Home
from inference.node.node_files import NodeFiles, RunFile
from tests.e2e.conftest import TINY
from tests.e2e.installation import WEIGHTS, Installation, eventually, routed_to

ENGINE_ARGS = "--max-model-len 2048 --max-num-seqs 32"
MAX_IN_FLIGHT = 20


@dataclass
class Pair:
    installation: Installation
    key: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    def runs(self) -> dict[str, RunFile]:
        return NodeFiles(Home(self.installation.home), "test-node").read_runs()

    def wait_for_two(self) -> None:
        def are_ready() -> bool:
            status = self.installation.status()
            replicas = next(entry["replicas"] for entry in status["models"] if entry["id"] == TINY)
            are_up = [replica["state"] for replica in replicas] == ["ready", "ready"]
            return are_up and routed_to(status, TINY) == {replica["id"] for replica in replicas}

        eventually(are_ready, within_s=180, every_s=0.3, what="two replicas are ready, and sent to")


def engine_of(run: RunFile) -> httpx.Client:
    """A client that talks to the engine itself, past the gateway."""
    return httpx.Client(transport=httpx.HTTPTransport(uds=run.socket), base_url="http://engine", timeout=30)


@pytest.fixture(scope="package")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Without a gateway. What they have been asked before is in the ledger: tests/chaos/test_reconciliation.py is the first."""
    installation = Installation(
        tmp_path_factory.mktemp("pair"),
        database_url=os.environ.get("DATABASE_URL", ""),
        HEADWAY_ENGINE_COUNT_S="0.5",
        HEADWAY_QUEUE_TIMEOUT_S="300",
    )
    try:
        installation.migrate()
        installation.start("node")
        installation.manage("create_tenant", "acme")
        key = installation.manage("issue_key", "acme", "--name", "ci")
        installation.manage("make_tiny_model", str(WEIGHTS / "tiny"), timeout_s=300)
        golden = installation.home / "golden.json"
        golden.write_text(json.dumps([{"prompt": "one two three four five six", "max_tokens": 3}]))
        installation.manage(
            "register_model", TINY, "--unchecked", "--weights", str(WEIGHTS / "tiny"), "--dtype", "float32",
            f"--engine-args={ENGINE_ARGS}", "--golden", str(golden), "--max-in-flight", str(MAX_IN_FLIGHT),
        )  # fmt: skip
        installation.manage("scale", TINY, "--replicas", "2")
        yield Pair(installation, key)
    finally:
        installation.close()


@pytest.fixture(scope="module")
def service(engines: Pair, request: pytest.FixtureRequest) -> Iterator[Pair]:
    """With a gateway of the module's own, by its GATEWAY_SETTINGS."""
    engines.installation.start_gateway(**getattr(request.module, "GATEWAY_SETTINGS", {}))
    engines.wait_for_two()
    yield engines
    engines.installation.stop("gateway")
