"""How soon a client that leaves frees the engine (issue 4): p50 and p99 of the time until the engine runs nothing any more.

    make up; python -m bench.aborts_real [--model tiny] [--leaves 100]

Three ways of leaving: in the middle of a stream; while an answer in one piece is made; and while queued behind requests that
hold every place (then it is until the end that its receipt tells). The engine's count comes from its own /metrics, asked
again as soon as it has answered: the figures hold that round trip, and whatever the engine takes to count again.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import datetime

import httpx

from bench.flood_real import manage
from bench.real_model import Side, sides

LIMIT_S = 10.0
RUNNING = "vllm:num_requests_running"


async def ask(side: Side, *, stream: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(side.host, side.port)
    asked = {"model": side.model, "stream": stream, "max_tokens": 1500, "ignore_eos": True}
    body = json.dumps(asked | {"messages": [{"role": "user", "content": "Tell me about rivers."}]}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    head += f"authorization: Bearer {side.authorization}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


async def until(count: Callable[[], Awaitable[int]], wanted: Callable[[int], bool]) -> float:
    """Seconds. Raises SystemExit when it takes longer than LIMIT_S."""
    began_s = time.perf_counter()
    while not wanted(await count()):
        if time.perf_counter() - began_s > LIMIT_S:
            raise SystemExit(f"after {LIMIT_S:g} s it was still not so")
    return time.perf_counter() - began_s


class Engine:
    def __init__(self, socket: str) -> None:
        self._client = httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=socket), base_url="http://engine")

    async def running(self) -> int:
        text = (await self._client.get("/metrics")).text
        return int(sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(RUNNING)))


async def leave_running(side: Side, engine: Engine, *, stream: bool) -> float:
    _, writer = await ask(side, stream=stream)
    await until(engine.running, lambda count: count > 0)
    writer.close()
    return await until(engine.running, lambda count: count == 0)


async def leave_queued(side: Side, engine: Engine, gateway: httpx.AsyncClient) -> float:
    _, holder = await ask(side, stream=True)
    await until(engine.running, lambda count: count > 0)
    reader, writer = await ask(side, stream=True)
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    await reader.readuntil(b": queued")
    writer.close()
    left_at = time.time()
    request_id = head.partition("x-request-id: ")[2].partition("\r")[0]
    while (receipt := await gateway.get(f"/v1/requests/{request_id}")).status_code == 404:  # noqa: ASYNC110  a second at most
        await asyncio.sleep(0.05)
    holder.close()
    await until(engine.running, lambda count: count == 0)
    assert receipt.json()["end_state"] == "client_gone_before_first_token", receipt.text
    return max(0.0, datetime.fromisoformat(receipt.json()["ended_at"]).timestamp() - left_at)


async def queued_leaves(side: Side, engine: Engine, leaves: int) -> list[float]:
    """With one place for the whole tenant, and somebody in it."""
    headers = {"authorization": f"Bearer {side.authorization}"}
    gateway = httpx.AsyncClient(base_url=f"http://{side.host}:{side.port}", headers=headers)
    manage("set_limits", "demo", "--concurrency", "1")
    try:
        await asyncio.sleep(2)  # the gateway reads it within a second
        return [await leave_queued(side, engine, gateway) for _ in range(leaves)]
    finally:
        manage("set_limits", "demo", "--concurrency", "none")


def told(label: str, took_s: list[float]) -> str:
    ordered = sorted(took_s)
    p99_s = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    return (
        f"| {label} | {len(took_s)} | {statistics.median(took_s) * 1000:.0f} | {p99_s * 1000:.0f} | {ordered[-1] * 1000:.0f} |"
    )


async def main(model: str, leaves: int) -> None:
    direct, side = sides(model)
    engine = Engine(direct.socket)
    print("| left | times | p50 ms | p99 ms | worst ms |\n| --- | --- | --- | --- | --- |")
    for label, stream in (("a stream", True), ("an answer in one piece", False)):
        print(told(label, [await leave_running(side, engine, stream=stream) for _ in range(leaves)]), flush=True)
    print(told("the queue", await queued_leaves(side, engine, leaves)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--leaves", type=int, default=100)
    options = parser.parse_args()
    asyncio.run(main(options.model, options.leaves))
