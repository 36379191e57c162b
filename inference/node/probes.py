"""What a replica's jobs ask its engine. Blocking; each runs in a thread and ends early when its job is cancelled."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from inference.engines.client import EngineClient
from inference.engines.vllm import EngineLoad
from inference.errors import EngineFailed
from inference.node.golden import Certificate, certify
from inference.node.jobs import Job
from inference.node.node_settings import NodeSettings
from inference.node.serving_facts import OwnCounter, serving_facts

ASK_EVERY_S = 0.05
ASK_LIMIT_S = 60.0
SCRAPE_LIMIT_S = 5.0
WARM_LIMIT_S = 120.0
DRAIN_LOOK_S = 0.25
# One idle scrape may fall between a gateway's sending and the engine's taking in.
DRAIN_IDLE_SCRAPES = 3

ClientFactory = Callable[[], EngineClient]


def until_it_answers(job: Job[Any], client: ClientFactory, *, limit_s: float) -> None:
    """Ask for one token until it comes. Raises EngineFailed after `limit_s` with what was wrong last."""
    started_s = time.monotonic()
    while not job.is_cancelled():
        left_s = limit_s - (time.monotonic() - started_s)
        try:
            return client().one_token(timeout_s=max(0.5, min(left_s, ASK_LIMIT_S)))
        except EngineFailed as failure:
            if left_s <= 0:
                reason = f"no answer to a one-token request within {limit_s:g} s (last: {failure.message})"
                raise EngineFailed(reason) from None
        job.pause(ASK_EVERY_S)
    return None


def come_up(job: Job[OwnCounter], client: ClientFactory, read: Callable[[], OwnCounter], *, limit_s: float) -> OwnCounter:
    """`until_it_answers`; what its prompts are to be counted with is read while it loads. Raises EngineFailed."""
    counter = read()
    until_it_answers(job, client, limit_s=limit_s)
    return counter


def certificate(
    job: Job[Certificate],
    client: ClientFactory,
    prompts: list[dict[str, Any]],
    reference: list[list[float]] | None,
    *,
    counter: Callable[[], OwnCounter],
    settings: NodeSettings,
) -> Certificate:
    """Warm up, the golden check, and how the engine counts prompts. Raises EngineFailed, GoldenMismatch."""
    engine = client()
    engine.warm_logprobs(timeout_s=WARM_LIMIT_S)
    certified = certify(
        engine,
        prompts,
        reference=reference,
        tolerance_nats=settings.golden_tolerance_nats,
        timeout_s=settings.golden_limit_s,
        is_cancelled=job.is_cancelled,
    )
    return replace(certified, facts=serving_facts(engine, counter()))


@dataclass(frozen=True)
class Look:
    """`load`: None if it could not be had. `canary`: None if none was sent, empty if answered, else what was wrong.

    Metrics were read between the two unix seconds.
    """

    load: EngineLoad | None
    canary: str | None
    from_s: float = 0.0
    until_s: float = 0.0


@dataclass(frozen=True)
class Drained:
    """`last`: the last look at its metrics. Not idle: the limit came first."""

    is_idle: bool
    last: Look


def look(client: ClientFactory, *, sends_canary: bool, canary_limit_s: float) -> Look:
    engine = client()
    seen = scrape(engine)
    load = seen.load
    if not sends_canary:
        return seen
    try:
        engine.one_token(timeout_s=canary_limit_s)
        return Look(load=load, canary="")
    except EngineFailed as failure:
        # Customers' requests may have come in meanwhile and stand before the canary; then the counters move.
        after = _scrape(engine)
        is_moving = load is not None and after is not None and after.progress > load.progress
        return Look(load=after, canary="" if is_moving else failure.message)


def drain(job: Job[Drained], client: ClientFactory, *, wait_for_gateways: Callable[[], bool], limit_s: float) -> Drained:
    """Wait until no gateway sends any more and the engine has finished what it has, or the limit has come."""
    started_s = time.monotonic()
    wait_for_gateways()
    num_idle, seen = 0, Look(load=None, canary=None)
    while not job.is_cancelled() and time.monotonic() - started_s < limit_s:
        seen = scrape(client())
        load = seen.load
        num_idle = num_idle + 1 if load is not None and load.num_running + load.num_waiting == 0 else 0
        if num_idle >= DRAIN_IDLE_SCRAPES:
            return Drained(is_idle=True, last=seen)
        job.pause(DRAIN_LOOK_S)
    return Drained(is_idle=False, last=seen)


def scrape(engine: EngineClient) -> Look:
    from_s = time.time()
    return Look(load=_scrape(engine), canary=None, from_s=from_s, until_s=time.time())


def _scrape(engine: EngineClient) -> EngineLoad | None:
    try:
        return engine.load(timeout_s=SCRAPE_LIMIT_S)
    except EngineFailed:
        return None
