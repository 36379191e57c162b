"""What scores mean: a proportion with its interval, two versions on the same cases, and whether a bound is held.

Wilson, E. B., "Probable inference, the law of succession, and statistical inference" (1927), for one proportion; Newcombe,
R. G., "Improved confidence intervals for the difference between binomial proportions based on paired data", Statistics in
Medicine 17 (1998), method 10, for the difference on the same cases; McNemar's test, exact, for whether there is any.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import comb, sqrt
from statistics import NormalDist

DEFAULT_CONFIDENCE = 0.95


class Verdict(StrEnum):
    PASS = "pass"
    BREACH = "breach"
    INSUFFICIENT = "insufficient"
    """Too few cases to say either."""


@dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Paired:
    """How two runs did on the cases that both have."""

    both: int
    only_new: int
    only_old: int
    neither: int

    @property
    def cases(self) -> int:
        return self.both + self.only_new + self.only_old + self.neither


def z_of(confidence: float, *, is_two_sided: bool = True) -> float:
    return NormalDist().inv_cdf(1 - (1 - confidence) / (2 if is_two_sided else 1))


def wilson(passed: int, cases: int, *, confidence: float = DEFAULT_CONFIDENCE) -> Interval:
    """Of a proportion, two-sided. Of no cases nothing is known: 0 to 1."""
    return _wilson(passed, cases, z_of(confidence))


def _wilson(passed: int, cases: int, z: float) -> Interval:
    assert 0 <= passed <= cases, "not more can pass than there are"
    if cases == 0:
        return Interval(0.0, 0.0, 1.0)
    share = passed / cases
    middle = (share + z * z / (2 * cases)) / (1 + z * z / cases)
    half = z / (1 + z * z / cases) * sqrt(share * (1 - share) / cases + z * z / (4 * cases * cases))
    low = 0.0 if passed == 0 else max(0.0, middle - half)
    return Interval(share, low, 1.0 if passed == cases else min(1.0, middle + half))


def paired_difference(paired: Paired, *, confidence: float = DEFAULT_CONFIDENCE) -> Interval:
    """The new run's share less the old one's, two-sided."""
    return _difference(paired, z_of(confidence))


def _difference(paired: Paired, z: float) -> Interval:
    cases = paired.cases
    if cases == 0:
        return Interval(0.0, -1.0, 1.0)
    new = _wilson(paired.both + paired.only_new, cases, z)
    old = _wilson(paired.both + paired.only_old, cases, z)
    value, phi = new.value - old.value, _phi(paired)
    below, above = new.value - new.low, new.high - new.value
    old_below, old_above = old.value - old.low, old.high - old.value
    low = value - sqrt(max(0.0, below**2 - 2 * phi * below * old_above + old_above**2))
    high = value + sqrt(max(0.0, old_below**2 - 2 * phi * old_below * above + above**2))
    return Interval(value, max(-1.0, low), min(1.0, high))


def _phi(paired: Paired) -> float:
    """How much the two agree, with Newcombe's correction for continuity."""
    new_yes, new_no = paired.both + paired.only_new, paired.only_old + paired.neither
    old_yes, old_no = paired.both + paired.only_old, paired.only_new + paired.neither
    under = new_yes * new_no * old_yes * old_no
    if under == 0:
        return 0.0
    over = paired.both * paired.neither - paired.only_new * paired.only_old
    if over > 0:
        over = max(0, over - paired.cases / 2)  # type: ignore[assignment]
    return over / sqrt(under)


def mcnemar(paired: Paired) -> float:
    """The chance of a difference at least as large if the two were the same: exact, two-sided."""
    differ = paired.only_new + paired.only_old
    fewer = min(paired.only_new, paired.only_old)
    tail = sum(comb(differ, number) for number in range(fewer + 1))
    return min(1.0, float(2 * tail / 2**differ)) if differ else 1.0


@dataclass(frozen=True)
class Bound:
    """What a gate asks for; shares, 0 to 1. One-sided: with `confidence` the true value is on its good side."""

    min_score: float | None = None
    max_drop: float | None = None
    confidence: float = DEFAULT_CONFIDENCE


@dataclass(frozen=True)
class Judged:
    verdict: Verdict
    reasons: list[str]


def judge_score(bound: Bound, *, passed: int, cases: int) -> Judged:
    """The least score; a gate without one passes."""
    if bound.min_score is None:
        return Judged(Verdict.PASS, [])
    found = _wilson(passed, cases, z_of(bound.confidence, is_two_sided=False))
    verdict = _verdict(found.low >= bound.min_score, found.high < bound.min_score)
    return Judged(verdict, [_says(f"score {_percent(found.value)}", found, "least", bound.min_score, bound.confidence)])


def judge_drop(bound: Bound, paired: Paired) -> Judged:
    """The most it may be below the stable version on the same cases; a gate without it passes."""
    if bound.max_drop is None:
        return Judged(Verdict.PASS, [])
    found = _difference(paired, z_of(bound.confidence, is_two_sided=False))
    verdict = _verdict(found.low >= -bound.max_drop, found.high < -bound.max_drop)
    name = f"difference {found.value * 100:+.1f} points on {paired.cases} cases"
    return Judged(verdict, [_says(name, found, "least", -bound.max_drop, bound.confidence)])


def worst(verdicts: list[Verdict]) -> Verdict:
    """A breach outweighs what is not known, and that a pass."""
    for verdict in (Verdict.BREACH, Verdict.INSUFFICIENT):
        if verdict in verdicts:
            return verdict
    return Verdict.PASS


def _verdict(is_held: bool, is_broken: bool) -> Verdict:
    if is_held:
        return Verdict.PASS
    return Verdict.BREACH if is_broken else Verdict.INSUFFICIENT


def _says(name: str, found: Interval, what: str, bound: float, confidence: float) -> str:
    between = f"between {_percent(found.low)} and {_percent(found.high)}"
    return f"{name}, {between} ({confidence * 100:g} % each side); {what} {_percent(bound)}"


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"
