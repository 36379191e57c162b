"""Disconnects, engine errors and refusals all at once: no limit passed, no false refusal, no slot or reservation left."""

import asyncio
import json
import random
from typing import Any

from inference.policy.decisions import LimitKind
from tests.fakes.gateway import ACME, basic, model_changes, running_gateway, until
from tests.fakes.raw_http import RawClient
from tests.fakes.replica import After, ScriptedReplica, chat_events, refused, streamed
from tests.inference.dispatch.test_dispatcher import terms

LIMITS: dict[str, int] = {
    "requests_per_minute": 150,
    "input_tokens_per_minute": 6000,
    "output_tokens_per_minute": 900,
    "concurrent_requests": 6,
}
STREAMED = basic(stream=True)


async def test_a_storm_passes_no_limit_refuses_nothing_falsely_and_leaks_nothing() -> None:
    rng = random.Random(7)
    limits: Any = LIMITS
    async with ScriptedReplica() as first, ScriptedReplica() as second:
        for replica in (first, second):
            scripts: list[Any] = [
                rng.choice(
                    [
                        streamed(chat_events(["a", "b"])),
                        streamed([*chat_events(["a"])[:2], 0.02, After.RESET]),
                        refused(500),
                        [After.RESET],
                        streamed([0.05, *chat_events()]),
                    ]
                )
                for _ in range(120)
            ]
            replica.script(*scripts)
        changes = [*model_changes("m", [first.url, second.url], max_in_flight=8, max_queued=400), terms(ACME, id=900, **limits)]
        async with running_gateway(changes) as gateway:
            refusals: list[dict[str, Any]] = []

            async def call(number: int) -> None:
                await asyncio.sleep(rng.random() * 0.5)
                if number % 5 == 0:
                    client = await RawClient.connect(gateway.port)
                    await client.send(
                        "POST",
                        "/v1/chat/completions",
                        gateway.auth,
                        json.dumps(STREAMED).encode(),
                    )
                    await asyncio.sleep(rng.random() * 0.05)
                    client.drop()
                    return
                answer = await gateway.post(body=basic(max_tokens=rng.randint(1, 40), stream=number % 2 == 0), timeout=60)
                if answer.status_code == 429:
                    refusals.append(answer.json()["error"])

            watch = asyncio.create_task(_watch(gateway))
            await asyncio.gather(*(call(number) for number in range(300)))
            await until(lambda: len(gateway.journal.closed) == len(gateway.journal.opened))
            assert not watch.done(), "what it watches never failed"
            watch.cancel()
            host = gateway.host
            host.brain.check_invariants(host.now_s())
            snapshot = host.snapshot()
            assert (snapshot.in_flight, snapshot.queued, snapshot.away) == (0, 0, 0)
            assert (snapshot.limits.running, snapshot.limits.open, snapshot.limits.overruns) == (0, 0, 0)
            assert refusals, "the limits were reached"
            for error in refusals:
                limit = error["detail"]["limit"]
                assert limit["kind"] != LimitKind.CONCURRENCY, "that one waits"
                assert limit["used"] + limit["reserved"] + limit["asked"] > limit["value"], "a false refusal"
                assert limit["used"] + limit["reserved"] <= limit["value"], "overshot"


async def _watch(gateway: Any) -> None:
    """At every moment: no more at once than the limit says."""
    while True:
        snapshot = gateway.host.snapshot()
        assert snapshot.in_flight <= LIMITS["concurrent_requests"]
        assert snapshot.limits.running == snapshot.in_flight
        await asyncio.sleep(0.005)
