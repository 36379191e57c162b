"""The gateway behind nginx as Debian ships it, with nothing set but `proxy_pass`."""

import asyncio
import json
import os
import shutil
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from tests.e2e.installation import free_port
from tests.fakes.fixtures import gateway, replica
from tests.fakes.gateway import GatewayUnderTest
from tests.fakes.replica import ScriptedReplica, chat_events, streamed

__all__ = ["gateway", "replica"]  # fixtures

PAUSE_S = 0.2
CONFIGURATION = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass {upstream}; }}
    }}
}}
"""


@pytest.fixture
async def front(gateway: GatewayUnderTest, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of nginx, which passes on to the gateway."""
    port, configuration = free_port(), tmp_path / "nginx.conf"
    configuration.write_text(CONFIGURATION.format(folder=tmp_path, port=port, upstream=gateway.url))
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    process = await asyncio.create_subprocess_exec(program, "-p", str(tmp_path), "-c", str(configuration), env=dict(os.environ))
    headers = {"authorization": f"Bearer {gateway.key}"}
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30) as client:
            await until_listening(client)
            yield client
    finally:
        process.terminate()
        await process.wait()


async def until_listening(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                await client.get("/healthz")
                return
            except httpx.ConnectError:
                await asyncio.sleep(0.02)


async def test_b15_tokens_come_one_by_one_through_a_default_nginx(front: httpx.AsyncClient, replica: ScriptedReplica) -> None:
    first, *rest = chat_events(["a", "b", "c", "d", "e", "f", "g", "h"])
    replica.script(streamed([first, *(step for event in rest for step in (PAUSE_S, event))]))
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    times, texts = [], []
    async with front.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        assert answer.headers["server"].startswith("nginx")
        assert answer.headers["cache-control"] == "no-cache"
        assert "content-length" not in answer.headers
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                delta = json.loads(line[6:])["choices"][0]["delta"]
                if delta.get("content"):
                    times.append(time.monotonic())
                    texts.append(delta["content"])
    assert "".join(texts) == "abcdefgh"
    gaps_s = sorted(later - earlier for earlier, later in pairwise(times))
    assert gaps_s[0] > PAUSE_S / 4, "tokens came in lumps"


async def test_errors_and_whole_answers_come_through_as_they_are(front: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": "hi"}]
    whole = await front.post("/v1/chat/completions", json={"model": "m", "messages": messages})
    assert whole.json()["choices"][0]["message"]["content"] == "Hello!"
    refused = await front.post("/v1/chat/completions", json={"model": "nope", "messages": messages})
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
    async with asyncio.timeout(5):
        large = await front.post("/v1/chat/completions", json={"model": "m", "messages": messages, "user": "x" * 5000})
    assert large.status_code == 400
