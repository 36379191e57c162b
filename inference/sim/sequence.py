"""One request inside an engine."""

from dataclasses import dataclass, field
from enum import Enum, auto


class Stage(Enum):
    WAITING = auto()
    PREFILL = auto()
    DECODE = auto()
    ENDED = auto()


@dataclass(slots=True, eq=False)
class Sequence:
    """`generated` and `computed_tokens` are exact at step boundaries, and while it does not decode; see DecodeBatch."""

    id: str
    group: tuple[int, str]
    """Tier and tenant: what its latencies are counted under."""
    prompt_tokens: int
    output_tokens: int
    content: tuple[int, ...] = ()
    """Hashes of the prompt's content blocks."""
    priority: int = 0
    """Lower is sooner; all equal: first come, first served."""

    order: int = 0
    """Of its arrival at the replica."""
    stage: Stage = Stage.WAITING
    generated: int = 0
    computed_tokens: int = 0
    """Whose KV is there."""
    target_tokens: int = 0
    """What must be computed before the next token: the prompt, and after a preemption what was generated."""
    kv_blocks: int = 0
    """Own ones and those of the content it holds."""
    held: list[int] = field(default_factory=list)
    published: int = 0
    """Content blocks of its prompt that are behind it: found, or computed."""
    cached_tokens: int | None = None
    """Found in the cache when it was first scheduled."""
    preemptions: int = 0
    last_token_s: float | None = None
    joined_step: int = -1
    """Of the batch, when it began to decode; -1: it does not."""
    is_aborted: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        """The lower, the sooner served and the later preempted."""
        return self.priority, self.order
