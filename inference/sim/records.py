"""What became of each request, and of each replica."""

from dataclasses import dataclass

from inference.policy.decisions import Reason
from inference.sim.workload import Arrival


@dataclass(slots=True)
class Record:
    """One request from its arrival to its end."""

    id: str
    arrival: Arrival
    granted_s: float | None = None
    first_token_s: float | None = None
    end_s: float | None = None
    replica: str = ""
    reason: Reason | None = None
    """Of its last grant, or of its refusal."""
    is_refused: bool = False
    cached_tokens: int = 0
    completion_tokens: int = 0
    attempts: int = 0
    parks: int = 0
    preemptions: int = 0
    predicted_ttft_s: float = 0.0
    predicted_cached_tokens: int = 0

    @property
    def ttft_s(self) -> float | None:
        """From its arrival, the queue included."""
        return None if self.first_token_s is None else self.first_token_s - self.arrival.at_s


@dataclass(slots=True)
class Load:
    """Of one replica, over time."""

    in_flight: int = 0
    most_in_flight: int = 0
    requests: int = 0
    computed_tokens: int = 0
    """Prompts not found in its cache, and answers, of requests that ended there."""
    area: float = 0.0
    changed_s: float = 0.0

    def change(self, by: int, now_s: float) -> None:
        self.area += self.in_flight * (now_s - self.changed_s)
        self.changed_s = now_s
        self.in_flight += by
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        assert self.in_flight >= 0
