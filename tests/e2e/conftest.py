"""One installation for all tests of this folder: two real models in float32, so that replies are exact."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.installation import DEMO_WEIGHTS, ENGINE_ARGS, WEIGHTS, Installation

SMALL = "acme/smollm2-135m"
TINY = "tiny"
GOLDEN = [
    {"prompt": "The capital of France is Paris, and the capital of Italy is Rome.", "expect": "", "max_tokens": 1},
    {"messages": [{"role": "user", "content": "What is the capital of France?"}], "expect": "Paris", "max_tokens": 16},
]


@dataclass
class Service:
    installation: Installation
    key: str

    def client(self, **options: Any) -> Any:
        """The official SDK's client; Any, since its overloads want literal types of every argument."""
        return openai.OpenAI(base_url=f"{self.installation.url}/v1", api_key=self.key, **options)

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    installation = Installation(tmp_path_factory.mktemp("service"), database_url=os.environ.get("DATABASE_URL", ""))
    try:
        yield set_up(installation)
    finally:
        installation.close()


def set_up(installation: Installation) -> Service:
    installation.migrate()
    installation.start("node")
    installation.manage("create_tenant", "acme")
    key = installation.manage("issue_key", "acme", "--name", "ci")
    golden = installation.home / "golden.json"
    golden.write_text(json.dumps(GOLDEN))
    register_managed(installation, SMALL, DEMO_WEIGHTS, golden=golden)
    installation.manage("make_tiny_model", str(WEIGHTS / "tiny"), timeout_s=300)
    register_managed(installation, TINY, str(WEIGHTS / "tiny"))
    installation.start_gateway()
    installation.wait_ready(SMALL, TINY)
    return Service(installation=installation, key=key)


def register_managed(installation: Installation, model: str, weights: str, *, golden: Path | None = None) -> None:
    extra = ["--golden", str(golden)] if golden else []
    installation.manage(
        "register_model",
        model,
        "--unchecked",
        "--weights",
        weights,
        "--dtype",
        "float32",
        f"--engine-args={ENGINE_ARGS}",
        *extra,
    )
    installation.manage("scale", model, "--replicas", "1")
