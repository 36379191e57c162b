"""Prefix-aware routing on real replicas (issue 4): 30 tenants with a prefix of about 1,200 tokens each.

    make up; manage.py scale tiny --replicas 2; python -m bench.prefix_real [--model tiny] [--tenants 30] [--asks 8]

Each tenant asks `asks` times with its own beginning and another end, all tenants mixed, 8 at once. The cached share is what
the engines say came from their caches, of the prompt tokens; the best possible is every whole block of a tenant's beginning
but for its first request. Each run has prefixes of its own.
"""

import argparse
import asyncio
import json
import os
import random
from collections import Counter
from pathlib import Path

import httpx

from bench.flood_real import manage
from bench.real_model import ROOT, sides

AT_ONCE = 8
BLOCK_TOKENS = 16
WORDS = ("river", "bridge", "town", "night", "market", "window", "garden", "letter", "winter", "harbour")


def keys(tenants: int) -> list[str]:
    """Of tenants that are made once, and kept beside the installation's other secrets."""
    store = Path(os.environ.get("HEADWAY_HOME", ROOT / ".headway")) / "bench_prefix_keys.json"
    made: list[str] = json.loads(store.read_text()) if store.exists() else []
    for number in range(len(made), tenants):
        manage("create_tenant", f"bench-prefix-{number}")
        made.append(manage("issue_key", f"bench-prefix-{number}", "--name", "bench"))
    store.write_text(json.dumps(made))
    store.chmod(0o600)
    return made[:tenants]


def beginning(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) + str(rng.randrange(100)) for _ in range(words))


class Asked:
    def __init__(self) -> None:
        self.prompt_tokens = self.cached_tokens = 0
        self.work_of: Counter[str] = Counter()  # by replica: prompt tokens it had to read


async def one(client: httpx.AsyncClient, key: str, model: str, messages: list[dict[str, str]], asked: Asked) -> None:
    headers = {"authorization": f"Bearer {key}"}
    body = {"model": model, "max_tokens": 8, "messages": messages}
    answer = await client.post("/v1/chat/completions", json=body, headers=headers)
    if answer.status_code != 200:
        raise SystemExit(f"{answer.status_code}: {answer.json()['error']['message']}")
    receipt = (await client.get(f"/v1/requests/{answer.headers['x-request-id']}", headers=headers)).json()
    usage = answer.json()["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    asked.prompt_tokens += usage["prompt_tokens"]
    asked.cached_tokens += cached
    asked.work_of[receipt["routing"]["replica"]] += usage["prompt_tokens"] - cached + usage["completion_tokens"]


async def main(model: str, tenants: int, asks: int, words: int) -> None:
    _, side = sides(model)
    rng = random.Random()
    begun = [(key, beginning(rng, words)) for key in keys(tenants)]
    todo = [(key, text, number) for number in range(asks) for key, text in begun]
    first, later = todo[:tenants], todo[tenants:]
    rng.shuffle(later)
    asked, places = Asked(), asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(base_url=f"http://{side.host}:{side.port}", timeout=120) as client:

        async def ask(key: str, text: str, number: int) -> None:
            messages = [{"role": "system", "content": text}, {"role": "user", "content": f"Question {number}?"}]
            async with places:
                await one(client, key, model, messages, asked)

        await asyncio.gather(*(ask(*each) for each in first))
        shared = asked.prompt_tokens // tenants // BLOCK_TOKENS * BLOCK_TOKENS  # of a tenant, whole blocks
        await asyncio.gather(*(ask(*each) for each in later))
    best = shared * tenants * (asks - 1)
    work = sorted(asked.work_of.values())
    mean = sum(work) / len(work)
    print(f"{tenants} tenants x {asks}, {asked.prompt_tokens / tenants / asks:.0f} prompt tokens each, {len(work)} replicas")
    share, of_best = asked.cached_tokens / asked.prompt_tokens, asked.cached_tokens / best
    print(f"cached {share:.1%} of the prompts' tokens: {of_best:.1%} of the best possible")
    print(f"busiest replica / mean: {work[-1] / mean:.2f} (tokens read and made: {dict(asked.work_of)})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--tenants", type=int, default=30)
    parser.add_argument("--asks", type=int, default=8)
    parser.add_argument(
        "--words", type=int, default=300, help="of a tenant's beginning; about 1,200 tokens of tiny's tokeniser"
    )
    options = parser.parse_args()
    asyncio.run(main(options.model, options.tenants, options.asks, options.words))
