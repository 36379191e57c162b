"""What mirrored requests came to: held against the stable version's answer, and written without any of their text."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import SequenceMatcher

from django.utils import timezone

from inference.rollout_models import ENDED, Rollout
from inference.shadow_models import ShadowScore

KEEP = timedelta(days=14)

# Words of Latin letters and digits, and single characters of everything else.
_WORD = re.compile(r"[A-Za-z0-9]+|[^\sA-Za-z0-9]")
MAX_WORDS = 400
MAX_REASON_CHARS = 32


@dataclass(frozen=True, slots=True)
class Answer:
    """One version's. `text`: its last few thousand characters; kept in memory only, until it was compared."""

    ttft_ms: int | None = None
    inter_token_ms: float | None = None
    completion_tokens: int = 0
    finish_reason: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Mirrored:
    rollout: str
    model: str
    stable: str
    candidate: str
    at_s: float
    """Unix time."""
    error: str
    of_stable: Answer
    of_candidate: Answer
    cost_picos: int


def write_scores(mirrored: Iterable[Mirrored]) -> None:
    ShadowScore.objects.bulk_create([_row(one) for one in mirrored])


def forget_old_scores(*, now: datetime | None = None) -> int:
    """Of rollouts that are over: what their gates said of them stays, with their events. Returns how many rows."""
    running = [str(number) for number in Rollout.objects.exclude(state__in=ENDED).values_list("pk", flat=True)]
    return ShadowScore.objects.filter(at__lt=(now or timezone.now()) - KEEP).exclude(rollout__in=running).delete()[0]


def similarity(one: str, other: str) -> float:
    """Of two texts, by their words in order: 1 for the same, 0 for nothing in common. Of long ones the beginnings count."""
    words, others = _words(one), _words(other)
    return SequenceMatcher(None, words, others, autojunk=False).ratio() if words or others else 1.0


def _words(text: str) -> list[str]:
    return [found[0] for found, _ in zip(_WORD.finditer(text), range(MAX_WORDS), strict=False)]


def _row(one: Mirrored) -> ShadowScore:
    stable, candidate = one.of_stable, one.of_candidate
    return ShadowScore(
        rollout=one.rollout,
        model=one.model,
        stable=one.stable,
        candidate=one.candidate,
        at=datetime.fromtimestamp(one.at_s, UTC),
        error=one.error[:MAX_REASON_CHARS],
        ttft_ms_stable=stable.ttft_ms,
        ttft_ms_candidate=candidate.ttft_ms,
        inter_token_ms_stable=stable.inter_token_ms,
        inter_token_ms_candidate=candidate.inter_token_ms,
        completion_tokens_stable=stable.completion_tokens,
        completion_tokens_candidate=candidate.completion_tokens,
        finish_reason_stable=stable.finish_reason[:MAX_REASON_CHARS],
        finish_reason_candidate=candidate.finish_reason[:MAX_REASON_CHARS],
        similarity=None if one.error else similarity(stable.text, candidate.text),
        cost_picos=one.cost_picos,
    )
