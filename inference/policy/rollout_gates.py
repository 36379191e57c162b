"""What a rollout's gates allow, and what they say of two versions in the same window (judged in judging.py)."""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    PASS = "pass"
    INSUFFICIENT = "insufficient"
    BREACH = "breach"


@dataclass(frozen=True, slots=True)
class Gates:
    """None: that gate is off."""

    max_error_rise: float | None = 0.02
    """Of the share of attempts that fail by the replica's fault."""
    max_length_rise: float | None = 0.2
    """Of the share of answers that end because they are too long."""
    ttft_p50_ratio: float | None = 1.5
    """The candidate's quantile against the stable version's."""
    ttft_p95_ratio: float | None = 2.0
    inter_token_p50_ratio: float | None = 1.5
    inter_token_p95_ratio: float | None = 2.0
    min_similarity: float | None = None
    """Of shadowed answers to those of the stable version, 0 to 1; sampled answers differ by themselves."""
    ttft_slack_ms: float = 30.0
    """Beyond the ratio: what nobody feels."""
    inter_token_slack_ms: float = 5.0
    confidence: float = 0.95
    breach_confidence: float = 0.999
    min_breach_samples: int = 20
    """Of the candidate, before a share or a quantile may be a breach."""
    max_failed_starts: int = 3
    """Engines of the candidate that ended, of themselves, in one rollout."""
    start_deadline_s: float = 600.0
    """For an engine to load and be certified."""
    stage_deadline_s: float = 7200.0
    """For weights to be brought to a node."""


@dataclass(frozen=True, slots=True)
class Window:
    """What one version did from the window's beginning to now."""

    answered: int = 0
    failed: int = 0
    """Attempts that failed by the replica's fault, whatever became of their requests."""
    too_long: int = 0
    """Of those answered: ended by their length."""
    ttft_ms: tuple[float, ...] = ()
    """In ascending order; a sample where there are many."""
    inter_token_ms: tuple[float, ...] = ()

    @property
    def attempts(self) -> int:
        return self.answered + self.failed


@dataclass(frozen=True, slots=True)
class CandidateHealth:
    ready: int
    """Replicas that serve."""
    needed: int
    """Of them: at least so many are to serve for traffic to go there; 0 before there is any."""
    failed_starts: int = 0
    has_failed: bool = False
    """An engine ended of itself and is not back: where none serves, that is the version's fault, and not a lost node's."""
    held: str = ""
    """Why one of them failed in a way that trying again cannot mend."""
    starting_s: float = 0.0
    """How long the slowest has been loading or certified."""
    staging_s: float = 0.0
    """How long the slowest has waited for its weights, or for a place since its node was lost."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one gate says."""

    gate: str
    outcome: Outcome
    reason: str
    limit: float | None = None
    unit: str = ""
    stable: float | None = None
    candidate: float | None = None
    low: float | None = None
    high: float | None = None
    """With `confidence`: of the difference, or of the candidate's quantile."""
    stable_samples: int = 0
    candidate_samples: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    outcome: Outcome
    findings: tuple[Finding, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """Of the findings that made it what it is."""
        return tuple(finding.reason for finding in self.findings if finding.outcome is self.outcome)
