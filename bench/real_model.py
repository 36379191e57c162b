"""What the gateway adds before a real model: TTFT and inter-token latency, direct and through it, taking turns.

    make up; python -m bench.real_model [--model smollm2-135m] [--runs 5] [--streams 4] [--tokens 64]

Each run sends the same requests (greedy, `ignore_eos`, prompts of their own against the prefix cache) first to the engine's
own socket, then to the gateway, or the other way round; figures are medians over runs of each run's p50.
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

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Side:
    name: str
    host: str
    port: int
    socket: str
    model: str
    authorization: str = ""
    ttft_ms: list[float] = field(default_factory=list)
    gap_ms: list[float] = field(default_factory=list)

    async def stream(self, prompt: str, tokens: int) -> tuple[float, list[float]]:
        """TTFT and the gaps after it, in seconds."""
        if self.socket:
            reader, writer = await asyncio.open_unix_connection(self.socket)
        else:
            reader, writer = await asyncio.open_connection(self.host, self.port)
        asked = {
            "model": self.model,
            "stream": True,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": prompt}],
        }
        body = json.dumps(asked).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\nconnection: close\r\n"
        head += f"authorization: Bearer {self.authorization}\r\n" if self.authorization else ""
        started_s = time.perf_counter()
        writer.write((head + f"content-length: {len(body)}\r\n\r\n").encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in answer.split(b"\r\n")[0]:
            raise SystemExit(f"{self.name}: {answer.splitlines()[0].decode()}")
        times: list[float] = []
        while data := await reader.read(65536):
            times += [time.perf_counter()] * data.count(b'"content":"')
        writer.close()
        del times[0]  # the role's empty text
        return times[0] - started_s, [later - earlier for earlier, later in itertools.pairwise(times)]


async def one_run(side: Side, number: int, streams: int, tokens: int) -> None:
    prompts = [f"Run {number}, {side.name}, story {story}: tell me about rivers." for story in range(streams)]
    results = await asyncio.gather(*(side.stream(prompt, tokens) for prompt in prompts))
    side.ttft_ms.append(statistics.median(ttft_s for ttft_s, _ in results) * 1000)
    side.gap_ms.append(statistics.median(gap_s for _, gaps_s in results for gap_s in gaps_s) * 1000)


def sides(model: str) -> tuple[Side, Side]:
    home = Path(os.environ.get("HEADWAY_HOME", ROOT / ".headway"))
    command = [sys.executable, str(ROOT / "manage.py"), "status", "--json"]
    status = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    replica = next(r for m in status["models"] if m["id"] == model for r in m["replicas"] if r["state"] == "ready")
    port = int(os.environ.get("HEADWAY_GATEWAY_PORT", "9100"))
    direct = Side("direct", "", 0, replica["url"].removeprefix("unix:"), model)
    through = Side("through", "127.0.0.1", port, "", model, (home / "demo_key").read_text().strip())
    return direct, through


async def main(model: str, runs: int, streams: int, tokens: int) -> None:
    direct, through = sides(model)
    for side in (direct, through):
        await one_run(side, -1, streams, tokens)
        side.ttft_ms.clear()
        side.gap_ms.clear()
    for number in range(runs):
        for side in (direct, through) if number % 2 else (through, direct):
            await one_run(side, number, streams, tokens)
    print(f"{model}, {streams} streams of {tokens} tokens, medians of {runs} runs\n")
    print("| | TTFT p50 ms | inter-token p50 ms |\n| --- | --- | --- |")
    figures = [(statistics.median(side.ttft_ms), statistics.median(side.gap_ms)) for side in (direct, through)]
    for side, (ttft_ms, gap_ms) in zip((direct, through), figures, strict=True):
        print(f"| {side.name} | {ttft_ms:.1f} | {gap_ms:.2f} |")
    (direct_ttft, direct_gap), (our_ttft, our_gap) = figures
    print(f"| difference | {our_ttft - direct_ttft:+.1f} | {(our_gap / direct_gap - 1) * 100:+.1f} % |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    asyncio.run(main(options.model, options.runs, options.streams, options.tokens))
