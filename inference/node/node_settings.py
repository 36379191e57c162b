"""The node agent's tunables, read once by the command that starts it."""

import re
from dataclasses import dataclass, field

from headway import env
from headway.errors import ConfigurationError
from inference.engines.vllm import EngineSettings
from inference.node.disk import DiskSettings
from inference.node.golden import TOLERANCE_NATS
from inference.node.watchdog import WatchdogSettings


@dataclass(frozen=True)
class NodeSettings:
    engine: EngineSettings = field(default_factory=EngineSettings)
    watchdog: WatchdogSettings = field(default_factory=WatchdogSettings)
    max_replicas: int = 0
    """HEADWAY_NODE_MAX_REPLICAS: engines that this machine has room for; 0: no bound is known."""
    disk: DiskSettings = field(default_factory=DiskSettings)
    is_prefork: bool = True
    """HEADWAY_ENGINE_PREFORK: start CPU engines by forking a process that has imported vLLM already."""
    start_limit_s: float = 600.0
    """HEADWAY_ENGINE_START_S: a started engine that has not answered a one-token request by then has failed."""
    golden_limit_s: float = 120.0
    """HEADWAY_GOLDEN_LIMIT_S: how long one golden prompt may take."""
    golden_tolerance_nats: float = TOLERANCE_NATS
    """HEADWAY_GOLDEN_TOLERANCE_MILLINATS: mean difference of token log-probabilities that is still the same model."""
    drain_ack_s: float = 10.0
    """HEADWAY_DRAIN_ACK_S: how long to wait for all gateways to know that a replica drains."""
    drain_limit_s: float = 120.0
    """HEADWAY_DRAIN_LIMIT_S: how long a draining engine's requests may go on before it is told to end."""
    backoff_first_s: float = 1.0
    """HEADWAY_ENGINE_BACKOFF_S: the pause before the first restart; it doubles from there."""
    backoff_ceiling_s: float = 60.0
    """HEADWAY_ENGINE_BACKOFF_MAX_S: the longest pause before a restart."""
    backoff_reset_s: float = 300.0
    """HEADWAY_ENGINE_BACKOFF_RESET_S: ready for so long, and earlier failures are forgotten."""
    log_max_bytes: int = 16 * 2**20
    """HEADWAY_ENGINE_LOG_BYTES: an engine's log is rotated beyond it (two old ones are kept)."""
    scrape_every_s: float = 0.5
    """HEADWAY_ENGINE_SCRAPE_S: how often an engine's metrics are read."""
    count_every_s: float = 60.0
    """HEADWAY_ENGINE_COUNT_S: how often an engine's token counters are kept for reconciliation; ten times as seldom while it
    is never idle."""


def zone_name(zone: str) -> str:
    """As it is, if pages and commands can name it. Raises ConfigurationError."""
    if zone and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", zone):
        raise ConfigurationError(f"HEADWAY_ZONE: {zone!r} is no zone's name: letters, digits, dots and dashes, 64 at most")
    return zone


def node_settings() -> NodeSettings:
    """From the environment. Raises ConfigurationError."""
    return NodeSettings(
        engine=EngineSettings(
            cpu_kv_cache_bytes=env.whole("HEADWAY_ENGINE_CPU_KV_BYTES", 256 * 2**20, at_least=2**20),
            cpu_threads=env.whole("HEADWAY_ENGINE_CPU_THREADS", 1, at_least=1, at_most=1024),
            cpu_max_batched_tokens=env.whole("HEADWAY_ENGINE_CPU_MAX_BATCHED_TOKENS", 256, at_least=16),
            sleeps=env.truth("HEADWAY_ENGINE_SLEEP", False),
            shutdown_timeout_s=env.whole("HEADWAY_ENGINE_SHUTDOWN_S", 30, at_least=1),
        ),
        watchdog=WatchdogSettings(
            stall_s=env.seconds("HEADWAY_ENGINE_STALL_S", 30.0, at_least=1.0),
            canary_every_s=env.seconds("HEADWAY_ENGINE_CANARY_S", 30.0, at_least=1.0),
            canary_limit_s=env.seconds("HEADWAY_ENGINE_CANARY_LIMIT_S", 15.0, at_least=1.0),
        ),
        max_replicas=env.whole("HEADWAY_NODE_MAX_REPLICAS", 0, at_most=10_000),
        disk=DiskSettings(
            budget_bytes=env.whole("HEADWAY_WEIGHTS_BUDGET_GB", 0) * 10**9,
            keep_free_bytes=env.whole("HEADWAY_WEIGHTS_KEEP_FREE_GB", 2) * 10**9,
            fetches_at_once=env.whole("HEADWAY_WEIGHTS_AT_ONCE", 2, at_least=1, at_most=64),
        ),
        is_prefork=env.truth("HEADWAY_ENGINE_PREFORK", True),
        start_limit_s=env.seconds("HEADWAY_ENGINE_START_S", 600.0, at_least=1.0),
        golden_limit_s=env.seconds("HEADWAY_GOLDEN_LIMIT_S", 120.0, at_least=1.0),
        golden_tolerance_nats=env.whole("HEADWAY_GOLDEN_TOLERANCE_MILLINATS", round(TOLERANCE_NATS * 1000), at_least=1) / 1000,
        drain_ack_s=env.seconds("HEADWAY_DRAIN_ACK_S", 10.0),
        drain_limit_s=env.seconds("HEADWAY_DRAIN_LIMIT_S", 120.0),
        backoff_first_s=env.seconds("HEADWAY_ENGINE_BACKOFF_S", 1.0, at_least=0.1),
        backoff_ceiling_s=env.seconds("HEADWAY_ENGINE_BACKOFF_MAX_S", 60.0, at_least=0.1),
        backoff_reset_s=env.seconds("HEADWAY_ENGINE_BACKOFF_RESET_S", 300.0),
        log_max_bytes=env.whole("HEADWAY_ENGINE_LOG_BYTES", 16 * 2**20, at_least=2**16),
        scrape_every_s=env.seconds("HEADWAY_ENGINE_SCRAPE_S", 0.5, at_least=0.1),
        count_every_s=env.seconds("HEADWAY_ENGINE_COUNT_S", 60.0, at_least=0.1),
    )
