"""What the agent's heartbeat says of its engines: their last scrape, and how fast they were since the one before."""

from collections.abc import Iterable
from dataclasses import dataclass

from inference.engines.vllm import EngineLoad
from inference.services.heartbeats import Load


@dataclass(frozen=True)
class Scraped:
    replica: str
    epoch: int
    load: EngineLoad


class Loads:
    """Keeps what each engine had made by the heartbeat before."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int], tuple[int, float]] = {}

    def of(self, scraped: Iterable[Scraped], *, now_s: float) -> dict[str, Load]:
        made: dict[tuple[str, int], tuple[int, float]] = {}
        loads = {}
        for seen in scraped:
            key, tokens = (seen.replica, seen.epoch), seen.load.completion_tokens or 0
            made[key] = tokens, now_s
            before, before_s = self._made.get(key, (tokens, now_s))
            loads[seen.replica] = Load(
                epoch=seen.epoch,
                running=seen.load.num_running,
                waiting=seen.load.num_waiting,
                kv_used_ratio=seen.load.kv_usage_ratio,
                tokens_per_s=max(0.0, (tokens - before) / (now_s - before_s)) if now_s > before_s else 0.0,
                prefix_hit_ratio=_share(seen.load.prefix_hits, seen.load.prefix_queries),
                accepted_ratio=seen.load.acceptance_ratio,
            )
        self._made = made
        return loads


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
