"""What can be set in the queue's policies, with its unit; what is out of order is refused where it is set (B132)."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from inference.policy.decisions import Tier, TierTargets


@dataclass(frozen=True, slots=True)
class QueueTunables:
    standard_share: float = 0.15
    """Of the served tokens, what standard gets however much interactive waits."""
    batch_share: float = 0.05
    """The same for batch, however much of the others waits."""
    ageing_s: float = 10.0
    """A tier passed over for this long is next, unless it is in debt for earlier turns out of its order."""
    quantum_tokens: float = 512.0
    """What a tier that is passed over earns before it has its turn; less, the longer it was passed over."""
    output_weight: float = 2.0
    """What a token that is made counts against one that is read (VTC, Sheng et al., OSDI 2024, section 4.1)."""
    cached_weight: float = 0.1
    """What a prompt token found in the cache counts against one that is computed."""
    assumed_completion_tokens: float = 128.0
    """What a tenant's first requests are charged for their output until one has ended."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.batch_share <= self.standard_share or self.standard_share + self.batch_share > 0.5:
            raise ValueError("floor shares: 0 <= batch <= standard, and half is left to interactive")
        if self.ageing_s <= 0 or self.quantum_tokens <= 0:
            raise ValueError("ageing_s and quantum_tokens are above 0")


@dataclass(frozen=True, slots=True)
class ParkingTunables:
    max_parks: int = 2
    """How often one request may be parked."""
    min_running_s: float = 2.0
    """How long it runs before it may be parked (again)."""
    wait_ratio: float = 0.5
    """Of the tier's TTFT target, what may pass in the queue; the rest is for the prompt."""


@dataclass(frozen=True, slots=True)
class BatchCapTunables:
    interval_s: float = 2.0
    """Between two changes of one replica's cap: so long the measured latency takes to show the last one."""
    aim_ratio: float = 0.94
    """Of the target, what it aims at: the chunks of others' prompts, which are not measured, come on top."""
    least_kept_ratio: float = 0.85
    """What is left of the cap at least when it shrinks, in proportion to how far the latency is over the aim."""
    grow_below_ratio: float = 0.9
    """It grows while the latency is below this part of the aim; between this and 1 it stays."""
    grow_ratio: float = 0.05
    """How much it grows, of itself; at least by one."""
    alone: int = 2
    """With at most so many requests a replica is as quick as it can be."""
    alone_weight: float = 0.2
    """What one measurement of so few counts against those before, where it is higher."""
    alone_ratio: float = 1.35
    """A target below this much of their latency is taken for this much: else a replica slower than its target would be
    starved."""

    def __post_init__(self) -> None:
        if not 0 < self.least_kept_ratio < 1 or not 0 < self.grow_below_ratio <= 1 or self.grow_ratio < 0:
            raise ValueError("a cap shrinks by a factor below 1 and grows below a ratio of at most 1")
        if self.alone < 1 or not 0 < self.alone_weight <= 1 or self.alone_ratio < 1:
            raise ValueError("alone and alone_ratio are at least 1, alone_weight is above 0 and at most 1")
        if self.aim_ratio <= 0 or self.interval_s <= 0:
            raise ValueError("aim_ratio and interval_s are above 0")


@dataclass(frozen=True, slots=True)
class BrainTunables:
    queue_timeout_s: float = 30.0
    """How long a request without a deadline may wait: interactive and standard."""
    batch_queue_timeout_s: float = 300.0
    """The same for batch, unless the other is longer: a flood of it is worked off rather than refused."""
    parked_timeout_s: float = 300.0
    """How long one that has begun, and was parked, may wait."""
    replica_hold_s: float = 2.0
    """How long requests wait for a replica to come back after the last one has gone."""
    failure_news_s: float = 1.0
    """How long the news of an engine's end takes: who waits for its restart is sent away if it has not come by then."""
    restart_wait_s: float = 120.0
    """How long a request waits for the restart of the only engine that could serve it."""
    no_replica_retry_after_s: float = 5.0
    """What a client is told when no replica serves."""
    max_retry_after_s: float = 30.0
    """The most a client is told to wait for the queue."""
    long_prompt_tokens: int = 8192
    """From here on a prompt is long: few are read at once, so that short ones find a free slot (B133)."""
    max_long_prefills_per_replica: int = 2
    """How many long prompts may be read at once, a replica of the pool."""
    fairness_window_s: float = 60.0
    """Over which the Jain index is taken."""
    queue: QueueTunables = QueueTunables()
    parking: ParkingTunables = ParkingTunables()
    batch_cap: BatchCapTunables = BatchCapTunables()


DEFAULT_TARGETS: Mapping[Tier, TierTargets] = {
    Tier.INTERACTIVE: TierTargets(ttft_s=0.5, inter_token_s=0.05),
    Tier.STANDARD: TierTargets(ttft_s=2.0, inter_token_s=0.1),
    Tier.BATCH: TierTargets(ttft_s=30.0, inter_token_s=0.25),
}
"""Of a pool that says nothing else."""


def targets_of(given_ms: Mapping[str, int | None]) -> dict[Tier, TierTargets]:
    """A pool's targets, the defaults where it says nothing: `<tier>_ttft_ms`, `<tier>_inter_token_ms`.

    Raises ValueError for targets that are out of order.
    """
    targets = {}
    for tier, default in DEFAULT_TARGETS.items():
        ttft_ms, inter_token_ms = (given_ms.get(f"{tier.name.lower()}_{what}_ms") for what in ("ttft", "inter_token"))
        targets[tier] = TierTargets(
            ttft_s=default.ttft_s if ttft_ms is None else ttft_ms / 1000,
            inter_token_s=default.inter_token_s if inter_token_ms is None else inter_token_ms / 1000,
        )
    refuse_misordered(targets)
    return targets


def refuse_misordered(targets: Mapping[Tier, TierTargets]) -> None:
    """A less urgent tier never has the stricter target. Raises ValueError."""
    ordered = [targets[tier] for tier in sorted(targets)]
    for target in ordered:
        if target.ttft_s <= 0 or target.inter_token_s <= 0:
            raise ValueError("targets are above 0")
    for urgent, patient in pairwise(ordered):
        if urgent.ttft_s > patient.ttft_s or urgent.inter_token_s > patient.inter_token_s:
            raise ValueError("a less urgent tier has a stricter target than a more urgent one")
