"""One request as the brain knows it, from its first ask to its end."""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from inference.policy.decisions import Ask, Tier

if TYPE_CHECKING:
    from inference.policy.pool import Pool
    from inference.policy.tenant_lines import Account, TenantLine

LineClass = tuple[frozenset[str], bool]
"""What decides which free slots a waiting request may use: the replicas it has tried; whether its prompt is long."""


class Stage(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    AWAY = "away"  # neither: it is about to be decided, or an attempt has ended and it will ask again


@dataclass(slots=True, eq=False)
class Entry:
    id: str
    ask: Ask
    """Its latest."""
    tier: Tier
    """After the plan's ceiling."""
    arrival_s: float
    """Of its first ask."""
    number: int
    """Orders what arrived at the same time."""
    max_tokens: int
    """Granted at admission; the ask says what is left of it."""
    pool: "Pool"
    """Of the version that serves it, or did last."""
    stage: Stage = Stage.AWAY
    line_class: LineClass = (frozenset(), False)
    asked_s: float = 0.0
    """When this ask, or the parking, began to wait."""
    expires_s: float = 0.0
    late_at_s: float | None = None
    """From when on it would miss its tier's target; None: its tier has none, or nobody is parked for it."""
    line: "TenantLine | None" = None
    ticket: int = 0
    """How often it has joined a line: what is left there of an earlier time does not count."""
    account: "Account | None" = None
    """Who is charged."""
    charged: float = 0.0
    """Virtual tokens on that account."""
    ahead: float = 0.0
    """Of these, what it was charged for and has not been served yet."""
    recorded_tokens: float = 0.0
    """Service that the fairness index has seen."""
    replica: str = ""
    granted_s: float = 0.0
    num_grants: int = 0
    cached_tokens: int = 0
    """Predicted at the first grant."""
    completion_tokens: int = 0
    """Made so far, over all attempts, as last told."""
    has_begun: bool = False
    """Its first token came: it is resumed, not retried."""
    is_parked: bool = False
    is_restored: bool = False
    """It waited elsewhere before, until a failover or for another version: not refused for what is predicted here."""
    is_refused: bool = False
    is_reading_long: bool = False
    """Counts among the long prompts that are being read."""
    num_parks: int = 0
    park_for: "Entry | None" = None
    """It is being parked for this one."""
    parks: "Entry | None" = None
    """This one is being parked for it."""

    @property
    def waits(self) -> bool:
        return self.stage is Stage.WAITING
