"""Is the candidate no worse than the stable version? Each gate holds the two against each other in the same window.

A gate passes when its measure is within the limit with `confidence`, is a breach when it is beyond with `breach_confidence`
(higher, as it is looked at every few seconds and one false alarm ends a rollout), and is insufficient in between: too few
samples are no pass.
"""

import math
from collections.abc import Sequence

from inference.policy.bounds import mean, quantile, share_rise
from inference.policy.rollout_gates import CandidateHealth, Finding, Gates, Outcome, Verdict, Window


def judge(gates: Gates, *, stable: Window, candidate: Window) -> Verdict:
    """Of traffic: the two windows are of the same time."""
    return verdict_of(
        [
            *_errors(gates, stable, candidate),
            *_latency(gates, "ttft", stable.ttft_ms, candidate.ttft_ms, gates.ttft_slack_ms),
            *_latency(gates, "inter_token", stable.inter_token_ms, candidate.inter_token_ms, gates.inter_token_slack_ms),
            *_too_long(gates, stable, candidate),
        ]
    )


def judge_health(gates: Gates, health: CandidateHealth) -> Verdict:
    """Of the candidate's engines: do they start, and stay?"""
    reason, outcome = "its engines start and stay", Outcome.PASS
    if health.held:
        reason, outcome = f"an engine cannot start: {health.held}", Outcome.BREACH
    elif health.failed_starts >= gates.max_failed_starts:
        reason, outcome = (
            f"its engines ended {health.failed_starts} times; {gates.max_failed_starts} are too many",
            Outcome.BREACH,
        )
    elif health.starting_s > gates.start_deadline_s:
        reason, outcome = f"an engine is not ready after {gates.start_deadline_s:g} s", Outcome.BREACH
    elif health.staging_s > gates.stage_deadline_s:
        reason, outcome = f"its weights, or a place for it, are not there after {gates.stage_deadline_s:g} s", Outcome.BREACH
    elif health.needed and not health.ready and health.has_failed:
        reason, outcome = "none of its replicas serves, and requests go there", Outcome.BREACH
    elif health.ready < health.needed:
        reason, outcome = f"{health.ready} of {health.needed} replicas serve", Outcome.INSUFFICIENT
    return Verdict(outcome, (Finding("engines", outcome, reason, candidate_samples=health.ready),))


def judge_similarity(gates: Gates, similarity: Sequence[float]) -> Verdict:
    """Of shadowed answers, each held against the stable version's; passes where there is no such gate."""
    limit = gates.min_similarity
    if limit is None:
        return Verdict(Outcome.PASS)
    sure, surer = (mean(similarity, each) for each in (gates.confidence, gates.breach_confidence))
    outcome = _within(-sure.low, -surer.high, -limit, may_breach=True)
    reason = f"answers are {_percent(sure.value)} alike; {_percent(limit)} are asked for"
    finding = Finding(
        "similarity",
        outcome,
        _told(reason, outcome),
        limit=limit,
        unit="share",
        candidate=_finite(sure.value),
        low=_finite(sure.low),
        high=_finite(sure.high),
        candidate_samples=len(similarity),
    )
    return Verdict(outcome, (finding,))


def verdict_of(findings: list[Finding]) -> Verdict:
    """A breach outweighs everything, and what is insufficient outweighs a pass."""
    outcomes = {finding.outcome for finding in findings}
    worst = next((each for each in (Outcome.BREACH, Outcome.INSUFFICIENT) if each in outcomes), Outcome.PASS)
    return Verdict(worst, tuple(findings))


def joined(*verdicts: Verdict) -> Verdict:
    return verdict_of([finding for verdict in verdicts for finding in verdict.findings])


def _errors(gates: Gates, stable: Window, candidate: Window) -> list[Finding]:
    before, after = (stable.failed, stable.attempts), (candidate.failed, candidate.attempts)
    return _share_gate(gates, "errors", "attempts failed", gates.max_error_rise, before, after)


def _too_long(gates: Gates, stable: Window, candidate: Window) -> list[Finding]:
    before, after = (stable.too_long, stable.answered), (candidate.too_long, candidate.answered)
    return _share_gate(gates, "too long", "answers ended by their length", gates.max_length_rise, before, after)


def _share_gate(
    gates: Gates, gate: str, what: str, limit: float | None, before: tuple[int, int], after: tuple[int, int]
) -> list[Finding]:
    if limit is None:
        return []
    sure = share_rise(before, after, gates.confidence)
    surer = share_rise(before, after, gates.breach_confidence)
    outcome = _within(sure.high, surer.low, limit, may_breach=after[1] >= gates.min_breach_samples and before[1] > 0)
    outcome = outcome if before[1] else Outcome.INSUFFICIENT
    old, new = (_share(each) for each in (before, after))
    reason = f"{_percent(new)} of its {what}, {_percent(old)} of the stable version's; {_percent(limit)} more are allowed"
    return [
        Finding(
            gate,
            outcome,
            _told(reason, outcome),
            limit=limit,
            unit="share",
            stable=old,
            candidate=new,
            low=sure.low,
            high=sure.high,
            stable_samples=before[1],
            candidate_samples=after[1],
        )
    ]


def _latency(
    gates: Gates, what: str, stable: tuple[float, ...], candidate: tuple[float, ...], slack_ms: float
) -> list[Finding]:
    limits = ((0.5, getattr(gates, f"{what}_p50_ratio")), (0.95, getattr(gates, f"{what}_p95_ratio")))
    return [_quantile_gate(gates, what, at, ratio, stable, candidate, slack_ms) for at, ratio in limits if ratio is not None]


def _quantile_gate(
    gates: Gates, what: str, at: float, ratio: float, stable: tuple[float, ...], candidate: tuple[float, ...], slack_ms: float
) -> Finding:
    """Each side gets half of the doubt: then both bounds hold together."""
    sure, surer = (1 - (1 - confidence) / 2 for confidence in (gates.confidence, gates.breach_confidence))
    old, new = quantile(stable, at, sure), quantile(candidate, at, sure)
    least, most = quantile(stable, at, surer).high, quantile(candidate, at, surer).low
    limit = old.value * ratio + slack_ms if stable else None
    may_breach = len(candidate) >= gates.min_breach_samples and bool(stable)
    outcome = _within(new.high - old.low * ratio, most - least * ratio, slack_ms, may_breach=may_breach)
    outcome = outcome if stable else Outcome.INSUFFICIENT
    name = f"{what.replace('_', '-')} p{at * 100:.0f}"
    reason = f"{name}: {_ms(new.value)}, {_ms(old.value)} of the stable version; {ratio:g} times that is allowed"
    return Finding(
        name,
        outcome,
        _told(reason, outcome),
        limit=limit,
        unit="ms",
        stable=_finite(old.value),
        candidate=_finite(new.value),
        low=_finite(new.low),
        high=_finite(new.high),
        stable_samples=len(stable),
        candidate_samples=len(candidate),
    )


def _within(at_most: float, at_least: float, limit: float, *, may_breach: bool) -> Outcome:
    """`at_most`: the measure's bound with confidence; `at_least`: the other one, with breach_confidence."""
    if at_least > limit and may_breach:
        return Outcome.BREACH
    return Outcome.PASS if at_most <= limit else Outcome.INSUFFICIENT


def _told(reason: str, outcome: Outcome) -> str:
    return f"{reason}: not sure yet" if outcome is Outcome.INSUFFICIENT else reason


def _share(of: tuple[int, int]) -> float | None:
    return of[0] / of[1] if of[1] else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _percent(value: float | None) -> str:
    return "none" if value is None or not math.isfinite(value) else f"{100 * value:.1f} %"


def _ms(value: float) -> str:
    return f"{value:.0f} ms" if math.isfinite(value) else "nothing measured"
