"""The official OpenAI SDK for Node against the gateway (tests/e2e/node)."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from inference.gateway.upstream import UpstreamTunables
from tests.e2e.installation import ROOT
from tests.fakes.fixtures import replica
from tests.fakes.gateway import GatewayUnderTest, model_changes, running_gateway
from tests.fakes.replica import CLOSE, EVENT_STREAM_HEAD, ScriptedReplica, Step, chat_events, piece

__all__ = ["replica"]  # a fixture

SCRIPT = Path(__file__).parent / "node" / "chat.mjs"
PACKAGES = ROOT / ".cache" / "node"


@pytest.fixture
async def gateway(replica: ScriptedReplica) -> AsyncIterator[GatewayUnderTest]:
    tunables = UpstreamTunables(inter_event_s=0.5)
    async with running_gateway(model_changes("m", [replica.url]), upstream=tunables) as gateway:
        yield gateway


async def chat(gateway: GatewayUnderTest) -> Any:
    # The packages lie beside the copy of the script: that is where Node looks for them.
    script = PACKAGES / SCRIPT.name
    script.write_bytes(SCRIPT.read_bytes())
    process = await asyncio.create_subprocess_exec(
        "node", str(script), f"{gateway.url}/v1", gateway.key, stdout=asyncio.subprocess.PIPE, cwd=PACKAGES
    )
    async with asyncio.timeout(30):
        out, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(out)


async def test_a_stream_is_read_to_its_end(gateway: GatewayUnderTest) -> None:
    assert await chat(gateway) == {"text": "Hello!", "finishReason": "stop", "error": None, "code": None, "isApiError": False}


@pytest.mark.parametrize("then", ["closes", "stalls"])
async def test_b27_a_stream_that_fails_raises_in_the_node_sdk_and_keeps_the_text_so_far(
    gateway: GatewayUnderTest, replica: ScriptedReplica, then: str
) -> None:
    begun: list[Step] = [EVENT_STREAM_HEAD, piece(b"".join(chat_events()[:2])), 0.05]
    replica.script([*begun, CLOSE] if then == "closes" else [*begun, 30.0])
    result = await chat(gateway)
    assert result["text"] == "Hel"
    assert result["isApiError"]
    assert result["code"] == ("engine_died" if then == "closes" else "engine_timeout")
