"""Does an engine move? It can hang while /health says 200, so only progress counts. Pure: `now_s` is an argument.

Busy (requests running or waiting): its counters must move within `stall_s`. Idle: a one-token canary must be answered.
Scrapes that fail count as no progress. Several looks must agree: an agent that was itself stopped for a minute has seen
nothing, and must not take that for a hang of every engine.
"""

from dataclasses import dataclass

from inference.engines.vllm import EngineLoad


@dataclass(frozen=True)
class WatchdogSettings:
    stall_s: float = 30.0
    """HEADWAY_ENGINE_STALL_S: a busy engine whose counters stand still for so long hangs."""
    canary_every_s: float = 30.0
    """HEADWAY_ENGINE_CANARY_S: how often an idle engine is asked for one token."""
    canary_limit_s: float = 15.0
    """HEADWAY_ENGINE_CANARY_LIMIT_S: an idle engine that has not answered by then hangs."""


MIN_STILL_LOOKS = 3


@dataclass(frozen=True)
class Hung:
    reason: str


class Watchdog:
    """One engine's. Feed it `observe` and `canary`, ask `verdict`."""

    def __init__(self, settings: WatchdogSettings, *, now_s: float, is_canary_due: bool = False) -> None:
        self.settings = settings
        self.load: EngineLoad | None = None
        self._moved_s = now_s
        self._answered_s = now_s if not is_canary_due else now_s - settings.canary_every_s
        self._canary_failure = ""
        self._num_still_looks = 0

    def observe(self, load: EngineLoad | None, *, now_s: float) -> None:
        """A scrape, or None if it failed."""
        self._num_still_looks += 1
        if load is None:
            return
        before = self.load
        is_busy = load.num_running + load.num_waiting > 0
        moved = before is None or load.progress != before.progress or load.kv_usage_ratio != before.kv_usage_ratio
        if moved or not is_busy:
            self._moved_s = now_s
            self._num_still_looks = 0
        if before is not None and load.progress != before.progress:
            self._answered_s = now_s  # customers' requests are answered: as good as a canary
        self.load = load

    def is_canary_due(self, *, now_s: float) -> bool:
        is_idle = self.load is None or self.load.num_running + self.load.num_waiting == 0
        return is_idle and now_s - self._answered_s >= self.settings.canary_every_s

    def canary(self, failure: str, *, now_s: float) -> None:
        """A canary was answered (`failure` empty) or not."""
        self._canary_failure = failure
        if not failure:
            self._answered_s = now_s

    def verdict(self, *, now_s: float) -> Hung | None:
        if self._canary_failure:
            return Hung(f"it hangs: a one-token request while idle failed: {self._canary_failure}")
        still_s = now_s - self._moved_s
        if still_s < self.settings.stall_s or self._num_still_looks < MIN_STILL_LOOKS:
            return None
        if self.load is not None and self.load.num_running + self.load.num_waiting:
            work = f"{self.load.num_running} running and {self.load.num_waiting} waiting requests"
            return Hung(f"it hangs: no progress for {still_s:.0f} s with {work}")
        return Hung(f"it hangs: its metrics were not to be had for {still_s:.0f} s")
