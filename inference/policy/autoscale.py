"""How many replicas of a pool are to serve: up fast, down slowly, never on what nobody knows.

Up follows the greater of what the present load needs and of a floor from the past (autoscale_load.py). Down follows the
highest of what was wanted over a while, one replica at a time, and only where those that stay could take the load (N -> N-1).
Between a step and one in the other direction there is always a pause. Who goes is not decided here: services/wanted.py lets
those that are still starting go first, then idle ones, then those with the fewest requests, and each is drained.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from inference.policy.autoscale_load import Loads, needed, quantile, replicas_for
from inference.policy.autoscale_tunables import AutoscaleTunables, ScaleBounds

LOOKS = 3
"""Over which the slots in use are taken."""


class Why(StrEnum):
    """Why so many; the text is what operators read."""

    UNKNOWN = "nobody says how the pool is doing: as many as before"
    STALE = "what its replicas say is too old: as many as before"
    BOUNDS = "the pool's bounds"
    LOAD = "the present load needs so many"
    BACKLOG = "what waits is to be worked off in time"
    FORECAST = "bursts like those of late would come late with fewer"
    ENOUGH = "as many as are needed"
    PAUSE = "another number is wanted, and the last change is too recent"
    LOOKBACK = "fewer would do now, more were wanted a moment ago"
    LAST_CHECK = "one less could not take the load"
    QUIET = "fewer would do"
    IDLE = "nothing was asked of it for a while"
    ASKED = "a request waits and nothing serves"


@dataclass(frozen=True, slots=True)
class ReplicaSeen:
    """One in rotation."""

    in_flight: int
    cap: int
    queued_tokens: float = 0.0
    """Of prompts it has not read yet."""
    kv_used_ratio: float | None = None
    seen_s_ago: float | None = None
    """Since its agent said anything of it; None: never."""


@dataclass(frozen=True, slots=True)
class PoolSeen:
    """What the dispatcher shows of a pool, of all versions that serve."""

    serving: int
    """Of the stable version, wanted in rotation, whether they are ready, start, or wait for a machine."""
    clock: str = ""
    """Whose seconds these are: another dispatcher counts others."""
    second: int = 0
    work: tuple[float, ...] = ()
    """Prompt tokens to compute that were asked for in each whole second up to `second`."""
    in_flight: int = 0
    waiting: int = 0
    waiting_tokens: float = 0.0
    replicas: tuple[ReplicaSeen, ...] = ()
    tokens_per_s: float = 0.0
    """Prompts that one replica reads; 0: not known."""
    ttft_s: float = 0.0
    """What the most urgent of those who ask are to have; 0: nobody asked."""

    @property
    def has_work(self) -> bool:
        return bool(self.in_flight or self.waiting)


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    slots: float
    kv: float
    wanted: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Between two decisions of one pool. Plain values: it is kept in a row."""

    clock: str = ""
    second: int = 0
    work: tuple[float, ...] = ()
    """By second, the newest last."""
    samples: tuple[Sample, ...] = ()
    up_s: float | None = None
    """When it last went up."""
    down_s: float | None = None
    busy_s: float | None = None
    """When something ran, waited or was asked last, as far as was seen."""


@dataclass(frozen=True, slots=True)
class Decision:
    desired: int
    why: Why
    evidence: dict[str, float] = field(default_factory=dict)


def decide(
    seen: PoolSeen | None,
    memory: Memory,
    bounds: ScaleBounds,
    *,
    serving: int,
    now_s: float,
    tunables: AutoscaleTunables,
) -> tuple[Decision, Memory]:
    """`serving`: as many are wanted now. `seen` None: the dispatcher does not answer. Any clock that goes on at one pace."""
    held = _within(bounds, serving)
    if seen is None or _is_stale(seen, tunables):
        why = Why.UNKNOWN if seen is None else Why.STALE
        decision = Decision(held, why if held == serving else Why.BOUNDS)
        return decision, _noted(memory, held, serving, now_s)
    memory = _remembered(seen, memory, now_s, tunables)
    if _is_idle(seen, memory, bounds, now_s):
        decision = Decision(0, Why.IDLE, {"idle_s": now_s - (memory.busy_s or now_s)})
        return decision, _noted(memory, 0, serving, now_s)
    loads = _loads(seen, memory, tunables)
    wanted, why, evidence = _wanted(seen, memory, loads, bounds, tunables)
    sample = Sample(now_s, loads.slots, loads.kv, wanted)
    memory = replace(memory, samples=(*memory.samples, sample))
    desired, why = _step(wanted, why, loads, memory, serving=serving, now_s=now_s, tunables=tunables)
    if desired != _within(bounds, desired):
        desired, why = _within(bounds, desired), Why.BOUNDS
    return Decision(desired, why, evidence | {"wanted": wanted}), _noted(memory, desired, serving, now_s)


def _within(bounds: ScaleBounds, count: int) -> int:
    return min(max(count, bounds.min_replicas), bounds.max_replicas)


def _is_stale(seen: PoolSeen, tunables: AutoscaleTunables) -> bool:
    """All are; of one that serves nothing there is nothing to say."""
    return bool(seen.replicas) and not any(_is_fresh(one, tunables) for one in seen.replicas)


def _is_fresh(one: ReplicaSeen, tunables: AutoscaleTunables) -> bool:
    return one.seen_s_ago is not None and one.seen_s_ago <= tunables.stale_s


# What is remembered


def _remembered(seen: PoolSeen, memory: Memory, now_s: float, tunables: AutoscaleTunables) -> Memory:
    num_new = len(seen.work) if seen.clock != memory.clock else min(len(seen.work), max(0, seen.second - memory.second))
    new = seen.work[len(seen.work) - num_new :]
    is_busy = seen.has_work or any(new) or memory.busy_s is None
    return replace(
        memory,
        clock=seen.clock,
        second=seen.second,
        work=(*memory.work, *new)[-int(tunables.horizon_s) :],
        samples=tuple(one for one in memory.samples if one.at_s >= now_s - tunables.horizon_s),
        busy_s=now_s if is_busy else memory.busy_s,
    )


def _noted(memory: Memory, desired: int, serving: int, now_s: float) -> Memory:
    if desired > serving:
        return replace(memory, up_s=now_s)
    return replace(memory, down_s=now_s) if desired < serving else memory


def _is_idle(seen: PoolSeen, memory: Memory, bounds: ScaleBounds, now_s: float) -> bool:
    assert memory.busy_s is not None
    return bounds.min_replicas == 0 and not seen.has_work and now_s - memory.busy_s >= bounds.idle_before_zero_s


# What is needed


def _loads(seen: PoolSeen, memory: Memory, tunables: AutoscaleTunables) -> Loads:
    recent = memory.work[-int(tunables.window_s) :]
    caps = [one.cap for one in seen.replicas if one.cap]
    kv = [one.kv_used_ratio for one in seen.replicas if one.kv_used_ratio is not None and _is_fresh(one, tunables)]
    return Loads(
        prompts=sum(recent) / tunables.window_s / seen.tokens_per_s if seen.tokens_per_s else 0.0,
        slots=(seen.in_flight + seen.waiting) * len(caps) / sum(caps) if caps else 0.0,
        kv=sum(kv) / len(kv) * len(seen.replicas) if kv else 0.0,
    )


def _wanted(
    seen: PoolSeen, memory: Memory, loads: Loads, bounds: ScaleBounds, tunables: AutoscaleTunables
) -> tuple[int, Why, dict[str, float]]:
    """Within the bounds; and of what kind the greatest need is."""
    slots = _mean_of_last([*(one.slots for one in memory.samples), loads.slots])
    present = needed(max(loads.prompts, slots, loads.kv), tunables.target_ratio)
    backlog = _for_backlog(seen, loads, tunables)
    floor = _floor(seen, memory, bounds, tunables)
    asked = 1 if seen.has_work else 0
    needs = {Why.LOAD: present, Why.BACKLOG: backlog, Why.FORECAST: floor, Why.ASKED: asked}
    why = max(needs, key=lambda one: needs[one])
    least = max(1, bounds.min_replicas) if seen.serving else bounds.min_replicas
    wanted = min(max(needs[why], least), bounds.max_replicas)
    evidence = {
        "prompts_load": round(loads.prompts, 3),
        "slots_load": round(loads.slots, 3),
        "kv_load": round(loads.kv, 3),
        "for_load": present,
        "for_backlog": backlog,
        "floor": floor,
        "waiting": seen.waiting,
        "in_flight": seen.in_flight,
    }
    return wanted, why if wanted == needs[why] else Why.BOUNDS, evidence


def _mean_of_last(values: list[float]) -> float:
    """Of a few looks: what one of them saw is a moment."""
    recent = values[-LOOKS:]
    return sum(recent) / len(recent)


def _for_backlog(seen: PoolSeen, loads: Loads, tunables: AutoscaleTunables) -> int:
    """Where the wait is beyond the target: what comes, and what waits, in `drain_s`."""
    backlog = seen.waiting_tokens + sum(one.queued_tokens for one in seen.replicas)
    ready = len(seen.replicas)
    if not seen.tokens_per_s or not ready or backlog <= seen.tokens_per_s * ready * seen.ttft_s:
        return 0
    return needed(loads.prompts + backlog / seen.tokens_per_s / tunables.drain_s, 1.0)


def _floor(seen: PoolSeen, memory: Memory, bounds: ScaleBounds, tunables: AutoscaleTunables) -> int:
    prompts = 0
    if seen.tokens_per_s and seen.ttft_s:
        prompts = replicas_for(
            memory.work,
            rate=seen.tokens_per_s,
            within_s=seen.ttft_s,
            late_ratio=tunables.late_ratio,
            most=bounds.max_replicas,
        )
    others = max(
        quantile([one.slots for one in memory.samples], tunables.quantile),
        quantile([one.kv for one in memory.samples], tunables.quantile),
    )
    return max(prompts, needed(others, tunables.target_ratio))


# From what is needed to a step


def _step(
    wanted: int, why: Why, loads: Loads, memory: Memory, *, serving: int, now_s: float, tunables: AutoscaleTunables
) -> tuple[int, Why]:
    if wanted > serving:
        may = _is_past(memory.up_s, tunables.up_pause_s, now_s) and (
            not serving or _is_past(memory.down_s, tunables.reversal_pause_s, now_s)
        )
        return (wanted, why) if may else (serving, Why.PAUSE)
    if wanted == serving:
        return serving, Why.ENOUGH
    highest = max(one.wanted for one in memory.samples if one.at_s >= now_s - tunables.lookback_s)
    if highest >= serving or memory.samples[0].at_s > now_s - tunables.lookback_s:  # or nobody has looked for long enough
        return serving, Why.LOOKBACK
    if loads.most > (serving - 1) * tunables.down_ratio:
        return serving, Why.LAST_CHECK
    may = _is_past(memory.down_s, tunables.down_pause_s, now_s) and _is_past(memory.up_s, tunables.reversal_pause_s, now_s)
    return (serving - 1, Why.QUIET) if may else (serving, Why.PAUSE)


def _is_past(at_s: float | None, pause_s: float, now_s: float) -> bool:
    return at_s is None or now_s - at_s >= pause_s
