"""Issue 4's flood on a real model: who is served when two tenants ask for twice what there is.

    make up; python -m bench.flood_real [--seconds 180] [--model smollm2-135m]

First the engine is asked directly by eight at once: its capacity in tokens a second. Of that, C (interactive, short prompts)
asks for an eighth and B (standard, steady) for a sixth, at a steady pace; A1 and A2 (batch, weights 1 and 2) keep a backlog.
Then the same engine directly, first come first served, with several numbers of streams: what a queue without tiers could
have made of it. Pin the engine to a core of its own before (`taskset -acp 1 <pid of the engine>`).
"""

import argparse
import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench.real_model import ROOT, Side, sides

PROMPT = "Write a long story about a river, a bridge and the people of a small town."
TENANTS = (("bench-a1", "bench-weight-1", 1.0), ("bench-a2", "bench-weight-2", 2.0), ("bench-b", "", 1.0), ("bench-c", "", 1.0))

TOKENS = {"A1": 96, "A2": 96, "B": 48, "C": 32}
SHARES = {"B": 1 / 6, "C": 1 / 8}
"""Of the engine's capacity, that they ask for."""
DIRECTLY_S = 20.0
"""So long the engine is asked directly, with each number of streams."""


@dataclass
class Served:
    asked: int = 0
    done: int = 0
    refused: int = 0
    tokens: int = 0
    ttft_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)


class Client:
    def __init__(self, side: Side, key: str, priority: str, until_s: float) -> None:
        self.side, self.key, self.priority, self.until_s = side, key, priority, until_s
        self.served = Served()

    async def one(self, tokens: int) -> None:
        self.served.asked += 1
        asked = {
            "model": self.side.model,
            "stream": True,
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
            "messages": [{"role": "user", "content": f"{self.served.asked} {PROMPT}"}],
        }
        if self.priority:
            asked["priority"] = self.priority
        body = json.dumps(asked).encode()
        key = f"authorization: Bearer {self.key}\r\n" if self.key else ""
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n{key}content-length: {len(body)}\r\n"
        if self.side.socket:
            reader, writer = await asyncio.open_unix_connection(self.side.socket)
        else:
            reader, writer = await asyncio.open_connection(self.side.host, self.side.port)
        started_s = time.perf_counter()
        writer.write((head + "content-type: application/json\r\n\r\n").encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        times: list[float] = []
        while data := await reader.read(65536):
            now_s = time.perf_counter()
            times += [now_s] * data.count(b'"content":"')
            self.served.tokens += data.count(b'"content":"') if time.monotonic() < self.until_s else 0
        writer.close()
        if b" 200 " not in answer.split(b"\r\n")[0] or len(times) < 2:
            self.served.refused += 1
            return
        self.served.done += 1
        self.served.ttft_s.append(times[1] - started_s)  # the first is the role's empty text
        self.served.gaps_s += [later - earlier for earlier, later in itertools.pairwise(times[1:])]

    async def backlog(self, streams: int, tokens: int) -> None:
        async def stream() -> None:
            while time.monotonic() < self.until_s:
                await self.one(tokens)

        await asyncio.gather(*(stream() for _ in range(streams)))

    async def steady(self, every_s: float, tokens: int) -> None:
        tasks = []
        while time.monotonic() < self.until_s:
            tasks.append(asyncio.create_task(self.one(tokens)))
            await asyncio.sleep(every_s)
        await asyncio.gather(*tasks)


def manage(*arguments: str) -> str:
    command = [sys.executable, str(ROOT / "manage.py"), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()


def keys() -> dict[str, str]:
    home = Path(os.environ.get("HEADWAY_HOME", ROOT / ".headway"))
    store = home / "bench_keys.json"
    if not store.exists():
        made = {}
        for tenant, plan, weight in TENANTS:
            manage("create_tenant", tenant)
            if plan:
                manage("define_plan", plan, "--weight", str(weight), "--tier-ceiling", "batch")
                manage("set_plan", tenant, plan)
            made[tenant] = manage("issue_key", tenant, "--name", "bench")
        store.write_text(json.dumps(made))
        store.chmod(0o600)
        time.sleep(1)
    found: dict[str, str] = json.loads(store.read_text())
    return found


def p50_ms(values: list[float]) -> str:
    return f"{statistics.median(values) * 1000:.0f}" if values else "-"


async def directly(side: Side, streams: int) -> Served:
    client = Client(side, "", "", time.monotonic() + DIRECTLY_S)
    await client.backlog(streams, TOKENS["A1"])
    return client.served


async def through(side: Side, seconds: float, capacity: float) -> dict[str, Served]:
    """`capacity`: tokens a second."""
    until_s, key_of = time.monotonic() + seconds, keys()
    a1 = Client(side, key_of["bench-a1"], "batch", until_s)
    a2 = Client(side, key_of["bench-a2"], "batch", until_s)
    b = Client(side, key_of["bench-b"], "standard", until_s)
    c = Client(side, key_of["bench-c"], "interactive", until_s)
    every_s = {name: TOKENS[name] / (capacity * share) for name, share in SHARES.items()}
    await asyncio.gather(
        a1.backlog(12, TOKENS["A1"]),
        a2.backlog(12, TOKENS["A2"]),
        b.steady(every_s["B"], TOKENS["B"]),
        c.steady(every_s["C"], TOKENS["C"]),
    )
    return {"A1": a1.served, "A2": a2.served, "B": b.served, "C": c.served}


async def main(model: str, seconds: float) -> None:
    direct, ours = sides(model)
    capacity = (await directly(direct, 8)).tokens / DIRECTLY_S
    print(f"The engine makes {capacity:.1f} tokens/s for eight at once.\n")
    served = await through(ours, seconds, capacity)
    print("| tenant | asked | done | refused | tokens/s | TTFT p50 ms | inter-token p50 ms |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, found in served.items():
        print(
            f"| {name} | {found.asked} | {found.done} | {found.refused} | {found.tokens / seconds:.1f} "
            f"| {p50_ms(found.ttft_s)} | {p50_ms(found.gaps_s)} |"
        )
    shares = [served["A1"].tokens / 1, served["A2"].tokens / 2]
    jain = sum(shares) ** 2 / (2 * sum(share**2 for share in shares))
    total = sum(found.tokens for found in served.values()) / seconds
    gap_s = statistics.median([gap for found in served.values() for gap in found.gaps_s])
    print(f"\nJain of A1 and A2 by weight {jain:.3f}; {total:.1f} tokens/s in all; inter-token p50 {gap_s * 1000:.1f} ms")
    print("\nThe same engine, first come first served:\n\n| streams | tokens/s | inter-token p50 ms |\n| --- | --- | --- |")
    for streams in (2, 3, 4, 5, 6, 8):
        fifo = await directly(direct, streams)
        print(f"| {streams} | {fifo.tokens / DIRECTLY_S:.1f} | {p50_ms(fifo.gaps_s)} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seconds", type=float, default=180.0)
    options = parser.parse_args()
    asyncio.run(main(options.model, options.seconds))
