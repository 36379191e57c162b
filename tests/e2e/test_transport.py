"""Clients that vanish and connections that idle, in front of real engines."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from typing import Any

import httpx

from tests.e2e.conftest import SMALL, TINY, Service
from tests.e2e.installation import eventually, running_requests

MESSAGES = [{"role": "user", "content": "Count."}]
# Opens streams, says so, reads until it is killed.
CLIENTS = """
import json, select, socket, sys
port, key, body, count = int(sys.argv[1]), sys.argv[2], sys.argv[3].encode(), int(sys.argv[4])
lines = ["POST /v1/chat/completions HTTP/1.1", "host: x", f"authorization: Bearer {key}", f"content-length: {len(body)}"]
head = "\\r\\n".join(lines) + "\\r\\n\\r\\n"
clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
for client in clients:
    client.sendall(head.encode() + body)
print("asked", flush=True)
while True:
    for client in select.select(clients, [], [])[0]:
        client.recv(65536)
"""


def test_b21_clients_killed_in_mid_stream_free_every_slot_within_two_seconds(service: Service) -> None:
    installation = service.installation
    before = installation.count_usage(service.key)
    body = json.dumps({"model": TINY, "messages": MESSAGES, "stream": True, "ignore_eos": True, "max_tokens": 1900})
    arguments = [str(installation.port), service.key, body, "50"]
    clients = subprocess.Popen([sys.executable, "-c", CLIENTS, *arguments], stdout=subprocess.PIPE)
    try:
        assert clients.stdout is not None
        assert clients.stdout.readline() == b"asked\n"
        with installation.engine(TINY) as engine:
            eventually(lambda: running_requests(engine) > 10, within_s=30, what="streams run")
            time.sleep(1)
            clients.send_signal(signal.SIGKILL)
            clients.wait()
            took_s = eventually(lambda: running_requests(engine) == 0, within_s=10, every_s=0.05, what="nothing runs")
        assert took_s < 2.0, took_s
    finally:
        clients.kill()
        clients.wait()
        if clients.stdout is not None:
            clients.stdout.close()
    records = installation.wait_usage(before + 50)[before:]
    assert len(records) == 50
    assert {record["end_state"] for record in records} <= {
        "client_gone_before_first_token",
        "client_gone_after_first_token",
        "done",
    }


def ttft_s(service: Service) -> float:
    """Of a short request."""
    body = {"model": SMALL, "messages": MESSAGES, "stream": True, "max_tokens": 10}
    started_s = time.monotonic()
    url = service.installation.url + "/v1/chat/completions"
    with httpx.stream("POST", url, json=body, headers=service.headers, timeout=60) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data: "):
                return time.monotonic() - started_s
    raise AssertionError("no token")


def test_b23_a_long_prompt_whose_client_left_does_not_delay_the_next(service: Service) -> None:
    """The engine goes on for the step it is in, at most HEADWAY_ENGINE_CPU_MAX_BATCHED_TOKENS of the prompt."""
    unloaded_s = min(ttft_s(service) for _ in range(3))
    long_prompt = " ".join(f"word{number}" for number in range(450))
    body = {"model": SMALL, "messages": [{"role": "user", "content": long_prompt}], "stream": True, "max_tokens": 5}
    url = service.installation.url + "/v1/chat/completions"
    started_s = time.monotonic()
    whole = httpx.post(url, json=body, headers=service.headers, timeout=120)
    whole_s = time.monotonic() - started_s
    assert whole.status_code == 200, whole.text
    body["messages"] = [{"role": "user", "content": "other " + long_prompt}]
    with service.installation.engine(SMALL) as engine:
        with contextlib.suppress(httpx.TimeoutException):
            httpx.post(url, json=body, headers=service.headers, timeout=min(1.0, whole_s / 4))
        after_s = ttft_s(service)
        eventually(lambda: running_requests(engine) == 0, within_s=5, what="nothing runs")
    assert after_s < 2 * unloaded_s + whole_s / 3 + 0.5, (unloaded_s, whole_s, after_s)


async def test_b97_requests_spaced_like_the_engines_idle_limit_never_meet_a_closed_connection(service: Service) -> None:
    """vLLM closes idle connections after 5 s; 40 clients of one connection each ask just before, at, and after that."""

    async def one(client: httpx.AsyncClient, pause_s: float) -> list[int]:
        statuses = []
        body: dict[str, Any] = {"model": TINY, "messages": MESSAGES, "max_tokens": 1}
        for _ in range(4):
            statuses.append((await client.post("/v1/chat/completions", json=body)).status_code)
            await asyncio.sleep(pause_s)
        return statuses

    async with httpx.AsyncClient(base_url=service.installation.url, headers=service.headers, timeout=60) as client:
        pauses = [pause_s for pause_s in (3.9, 4.0, 4.1, 4.9, 5.0, 5.1, 5.2, 6.0) for _ in range(5)]
        answers = await asyncio.gather(*(one(client, pause_s) for pause_s in pauses))
    assert {status for statuses in answers for status in statuses} == {200}
