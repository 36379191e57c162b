"""What routing may be tuned by: the defaults hold for GPUs and CPUs alike, for times are learnt."""

from dataclasses import dataclass, field

from inference.policy.health import HealthTunables


@dataclass(frozen=True, slots=True)
class RoutingTunables:
    health: HealthTunables = field(default_factory=HealthTunables)
    num_holders: int = 4
    """Of the prompt's beginning, looked at for one decision."""
    num_least_loaded: int = 4
    """Likewise; one more for each that the request has tried."""
    matters_ratio: float = 0.25
    """Who holds less than this part of what the best one holds is not looked at for it."""
    block_tokens: int = 128
    """Tokens of one block of `Ask.blocks`; not the engine's block size, but a multiple of it."""
    max_depth_blocks: int = 1024
    """Of a prompt, looked at; what comes after counts as uncached."""
    max_index_entries: int = 500_000
    """Of a pool's prefix index, about 300 bytes each; a prompt of 30 blocks makes 9, an answer one."""
    unknown_cache_tokens: int = 65_536
    """For a replica that does not say how many tokens its cache holds."""
    prefill_tokens_per_s: float = 8_000.0
    """Nominal, when no replica of the pool says; what is learnt corrects it."""
    prior_busy_s: float = 1.0
    """How many seconds of work of its own a replica needs to be believed as much as its pool."""
    fade_s: float = 60.0
    """Over which rates and recent work are averaged."""
    pace_fade_s: float = 1.0
    """Over which the inter-token latency is averaged: short, for the batch cap follows it."""
    overhead_s: float = 0.02
    """Of a first token, whatever the prompt: network, scheduling, one step."""
    report_delay_s: float = 0.25
    """How late a first token may be reported."""
    min_match_ratio: float = 0.125
    """A smaller part of a prompt, found in a cache, draws it nowhere: what most prompts begin with is soon everywhere."""
    own_work_weight: float = 2.0
    """A second of prefilling counts for so much more than one of waiting: those that come after wait for it too."""
    max_imbalance: float = 1.3
    """A replica with more than so many times its zone's mean share of slots in use gets nothing for its cache's sake."""
    imbalance_slack: float = 4.0
    """Requests it may have on top: where there are few, some more by chance are no imbalance."""
    balance_s: float = 0.2
    """What a full batch adds to the score: decoding slows down with it, and so does prefilling."""
    spread_s: float = 0.5
    """What being busy prefilling all of the last minute adds to the score: new prefixes go where there was least work."""
    zone_penalty_s: float = 1.0
    """How much sooner the first token must come from another zone."""
    full_kv_ratio: float = 0.9
    """KV use from which an engine is about to preempt."""
    full_kv_s: float = 2.0
    """What a full KV cache adds to the score."""
    frame_lasts_s: float = 5.0
    """An older state frame is as good as none."""
