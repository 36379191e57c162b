"""Schemathesis holds the gateway, on a real socket, to its OpenAPI document: what it takes, refuses and answers."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.fakes.gateway import GatewayUnderTest, model_changes, running_gateway
from tests.fakes.replica import ScriptedReplica

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


async def run_schemathesis(gateway: GatewayUnderTest, folder: Path, *options: str) -> None:
    """Fails with what it prints."""
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(HERE / "schemathesis.toml")),
        *("run", f"{gateway.url}/v1/openapi.json", "--header", f"Authorization: Bearer {gateway.key}", "--checks", "all"),
        *("--seed", "1", "--continue-on-failure", "--no-shrink", "--no-color", "--request-timeout", "20", *options),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SCHEMATHESIS_HOOKS": "tests.contract.hooks"}
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0, printed.decode()[-8000:]
    assert "Tested: 6" in printed.decode(), printed.decode()


async def check(folder: Path, *options: str) -> None:
    async with ScriptedReplica() as replica, running_gateway(model_changes("m", [replica.url], max_in_flight=64)) as gateway:
        await run_schemathesis(gateway, folder, *options)
        assert {record.end_state for record in gateway.journal.closed} >= {"done", "refused"}
        assert all(record.end_state in ("done", "refused") for record in gateway.journal.closed)
        assert gateway.in_flight() == 0


async def test_random_requests_are_taken_and_refused_as_the_document_says(tmp_path: Path) -> None:
    await check(tmp_path, "--phases", "fuzzing", "--max-examples", "20")


@pytest.mark.soak
async def test_every_bound_of_the_document_holds(tmp_path: Path) -> None:
    await check(tmp_path, "--phases", "coverage,fuzzing", "--max-examples", "60")
