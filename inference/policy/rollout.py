"""What a release does next, and how many replicas it needs. The evidence is judged in judging.py."""

import math
from dataclasses import dataclass
from enum import StrEnum

from inference.policy.rollout_gates import Gates, Outcome, Verdict

PPM = 1_000_000
"""Shares are in millionths."""


@dataclass(frozen=True, slots=True)
class Step:
    """One share of the traffic, and what is needed to leave it."""

    share_ppm: int
    min_duration_s: float
    min_samples: int
    """Attempts of the candidate."""


@dataclass(frozen=True, slots=True)
class ShadowStep:
    """Live requests are mirrored to the candidate after their answers; nobody gets what it says."""

    share_ppm: int
    min_duration_s: float
    min_samples: int
    max_usd_micros: int
    """What the mirrored requests may cost, at the model's price; then no more are mirrored."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A rollout's way, from the first replica to promotion."""

    steps: tuple[Step, ...]
    gates: Gates
    shadow: ShadowStep | None = None


class Next(StrEnum):
    STAY = "stay"
    GO_ON = "go on"
    ROLL_BACK = "roll back"


@dataclass(frozen=True, slots=True)
class Decision:
    next: Next
    reason: str


def next_step(step: Step | ShadowStep, verdict: Verdict, *, elapsed_s: float, num_samples: int) -> Decision:
    """Of a step that has run for `elapsed_s` and has seen so many attempts of the candidate."""
    if verdict.outcome is Outcome.BREACH:
        return Decision(Next.ROLL_BACK, "; ".join(verdict.reasons))
    if num_samples < step.min_samples:
        return Decision(Next.STAY, f"insufficient data: {num_samples} of {step.min_samples} requests")
    if verdict.outcome is Outcome.INSUFFICIENT:
        return Decision(Next.STAY, f"insufficient data: {'; '.join(verdict.reasons)}")
    if elapsed_s < step.min_duration_s:
        return Decision(
            Next.STAY, f"all gates pass; the step lasts {step.min_duration_s:g} s, of which {elapsed_s:.0f} are over"
        )
    return Decision(Next.GO_ON, "all gates pass")


def replicas_for(share_ppm: int, desired: int) -> int:
    """Of the candidate, for so much of the traffic that `desired` replicas of one version serve; one at least."""
    return max(1, math.ceil(desired * share_ppm / PPM))


@dataclass(frozen=True, slots=True)
class Wanted:
    """Replicas of one version beside the stable one: in rotation, and warm."""

    serving: int = 0
    warm: int = 0


def with_pins(wanted: Wanted, *, is_pinned: bool) -> Wanted:
    """A version that somebody holds on to serves with one replica at least, taken from those that are warm if need be."""
    if not is_pinned or wanted.serving:
        return wanted
    return Wanted(serving=1, warm=max(0, wanted.warm - 1))
