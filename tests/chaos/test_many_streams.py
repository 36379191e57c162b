"""2,000 streams at once through one gateway process: nobody is cut, /healthz answers, and what a stream costs is said."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from inference.gateway.listening import raise_file_limit
from tests.e2e.installation import Installation
from tests.fakes.replica import (
    ScriptedReplica,
    SeenRequest,
    Step,
    answered,
    chat_answer,
    chat_chunk,
    chat_events,
    piece,
    streamed,
)

NUM_STREAMS = 2000
NUM_EVENTS = 30
EVENT_PAUSE_S = 2.0
CONNECT_AT_ONCE = 50
# Asks once a second until its stdin ends; prints the slowest answer in seconds, failures, requests, when the slowest was.
HEALTH_WATCH = """
import select, sys, time, urllib.request
slowest, failed, asked, at, begun = 0.0, 0, 0, 0.0, time.monotonic()
while not select.select([sys.stdin], [], [], 1.0)[0]:
    started = time.monotonic()
    try:
        urllib.request.urlopen(sys.argv[1], timeout=1.0).read()
    except OSError:
        failed += 1
    took, asked = time.monotonic() - started, asked + 1
    if took > slowest:
        slowest, at = took, started - begun
print(slowest, failed, asked, at)
"""
EVENT = piece(chat_chunk({"content": "token "}))
START, *FIRST = streamed(chat_events()[:2], after=())
LAST = streamed(chat_events()[-3:])[1:]


def slow_answer(seen: SeenRequest) -> list[Step]:
    if seen.method != "POST" or not seen.json.get("stream"):
        return answered(chat_answer())
    middle: list[Step] = [step for _ in range(NUM_EVENTS) for step in (EVENT, EVENT_PAUSE_S)]
    return [START, *FIRST, *middle, *LAST]


def pss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Pss")


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[tuple[Installation, str]]:
    installation = Installation(tmp_path, database_url=os.environ.get("DATABASE_URL", ""))
    async with ScriptedReplica(default=slow_answer) as replica:

        async def run(*arguments: str) -> str:
            return await asyncio.to_thread(installation.manage, *arguments)

        await asyncio.to_thread(installation.migrate)
        await run("create_tenant", "acme")
        key = await run("issue_key", "acme", "--name", "ci")
        await run("register_model", "m", "--max-in-flight", str(NUM_STREAMS + 10))
        await run("register_replica", "--model", "m", "--url", replica.url, "--kind", "vllm")
        await asyncio.to_thread(installation.start_gateway)
        try:
            yield installation, key
        finally:
            await asyncio.to_thread(installation.close)


def watch_health(url: str) -> "subprocess.Popen[str]":
    """A process of its own, which this one's load does not slow down."""
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", HEALTH_WATCH, f"{url}/healthz"], stdin=pipe, stdout=pipe, text=True)


async def one_stream(port: int, request: bytes, gate: asyncio.Semaphore) -> bool:
    """Was it answered whole?"""
    async with gate:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
    tail = b""
    while data := await reader.read(65_536):
        tail = (tail + data)[-64:]
        if tail.endswith(b"0\r\n\r\n"):
            break
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return head.startswith(b"HTTP/1.1 200") and b"data: [DONE]" in tail


@pytest.mark.soak
async def test_b102_2000_streams_are_served_whole_and_healthz_answers_within_a_second(
    installation: tuple[Installation, str],
) -> None:
    raise_file_limit()
    service, key = installation
    pid = service.processes["gateway"].pid
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 100})
    lines = ["POST /v1/chat/completions HTTP/1.1", "host: x", f"authorization: Bearer {key}", f"content-length: {len(body)}"]
    request = ("\r\n".join(lines) + "\r\n\r\n" + body).encode()
    gate = asyncio.Semaphore(CONNECT_AT_ONCE)

    async def wave() -> int:
        """All streams at once, each answered whole. The most memory meanwhile, in bytes."""
        streams = [asyncio.create_task(one_stream(service.port, request, gate)) for _ in range(NUM_STREAMS)]
        peak = 0
        while not all(stream.done() for stream in streams):
            await asyncio.sleep(0.5)
            peak = max(peak, pss_bytes(pid))
        whole = [await stream for stream in streams]
        assert all(whole), f"{whole.count(False)} were not whole"
        return peak

    before = pss_bytes(pid)
    watch = watch_health(service.url)
    begun_s = asyncio.get_running_loop().time()
    peak = await wave()
    took_s = asyncio.get_running_loop().time() - begun_s
    slowest, failed, asked, at = map(float, (await asyncio.to_thread(watch.communicate, ""))[0].split())
    peak_again = await wave()
    print(  # noqa: T201
        f"\n{NUM_STREAMS} streams of {NUM_EVENTS} events: {(peak - before) / NUM_STREAMS / 1024:.1f} KiB of memory a stream "
        f"({before / 2**20:.0f} MiB before, {peak / 2**20:.0f} MiB at most, {peak_again / 2**20:.0f} MiB with as many again); "
        f"/healthz asked {asked:.0f} times, slowest {slowest * 1000:.0f} ms, at {at:.0f} s of {took_s:.0f}"
    )
    assert failed == 0
    assert slowest < 1.0
    assert service.processes["gateway"].poll() is None, "it was not restarted"
    records = await asyncio.to_thread(service.wait_usage, 2 * NUM_STREAMS, within_s=60)
    assert len(records) == 2 * NUM_STREAMS
    assert {record["end_state"] for record in records} == {"done"}
    assert peak_again - before < 1.25 * (peak - before), "memory is free for others when a stream is over"
