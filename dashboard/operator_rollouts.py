"""Rollouts as operators see them: the list, and one of them with its gates."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.utils import timezone

from dashboard.paging import Page, by_id
from inference.selectors import model_ids
from inference.services.rollouts.reading import RolloutView, events_of, rollouts, view_of

TONES = {
    "promoted": "pill-good",
    "rolled_back": "pill-bad",
    "aborted": "pill-bad",
    "rolling_back": "pill-bad",
    "paused": "pill-warn",
}
OUTCOMES = {"pass": ("pass", "pill-good"), "breach": ("breach", "pill-bad"), "insufficient": ("insufficient data", "pill-warn")}
STATES = (("open", "Open"), ("ended", "Ended"))


@dataclass(frozen=True)
class RolloutRow:
    view: RolloutView
    tone: str


@dataclass(frozen=True)
class RolloutList:
    rows: list[RolloutRow]
    page: Page
    model: str
    state: str
    models: list[str]
    states: tuple[tuple[str, str], ...] = STATES

    @property
    def is_filtered(self) -> bool:
        return bool(self.model or self.state or self.page.newer)


@dataclass(frozen=True)
class GateRow:
    name: str
    outcome: str
    tone: str
    stable: str
    candidate: str
    interval: str
    limit: str
    samples: str
    reason: str


@dataclass(frozen=True)
class EventRow:
    event: Any
    gates: list[GateRow]
    """What it was decided on."""


@dataclass(frozen=True)
class RolloutPage:
    view: RolloutView
    tone: str
    gates: list[GateRow]
    asked: str
    seen: str
    events: list[EventRow]
    is_own: bool
    """Who looks made it: somebody else approves it, where two persons are asked for."""

    @property
    def has_to_wait(self) -> bool:
        """Who looks cannot promote it now: another operator has to approve it first."""
        return self.is_own and self.view.may["approve"]

    @property
    def is_moving(self) -> bool:
        return self.view.rollout.is_open


def rollout_list(asked: Mapping[str, str]) -> RolloutList:
    model, state, now = asked.get("model", "").strip()[:200], asked.get("state", ""), timezone.now()
    is_open = {"open": True, "ended": False}.get(state)
    page = by_id(rollouts(public_id=model, is_open=is_open), asked.get("page", ""))
    rows = [RolloutRow(view_of(rollout, now=now), TONES.get(rollout.state, "")) for rollout in page.rows]
    return RolloutList(rows=rows, page=page, model=model, state=state if is_open is not None else "", models=model_ids())


def rollout_page(rollout: Any, *, actor: str) -> RolloutPage:
    view = view_of(rollout, now=timezone.now())
    return RolloutPage(
        view=view,
        tone=TONES.get(rollout.state, ""),
        gates=_gates(view.findings),
        asked=f"{rollout.share_ppm / 10_000:g} %",
        seen=_seen(view.seen) if rollout.share_ppm else "no request goes there",
        events=[EventRow(event, _gates((event.evidence or {}).get("findings", []))) for event in events_of(rollout)],
        is_own=rollout.created_by == actor,
    )


def _gates(findings: list[dict[str, Any]]) -> list[GateRow]:
    return [_gate(finding) for finding in findings]


def _gate(finding: Mapping[str, Any]) -> GateRow:
    unit = finding["unit"]
    outcome, tone = OUTCOMES[finding["outcome"]]
    return GateRow(
        name=finding["gate"],
        outcome=outcome,
        tone=tone,
        stable=_number(finding["stable"], unit),
        candidate=_number(finding["candidate"], unit),
        interval=_interval(finding["low"], finding["high"], unit),
        limit=_number(finding["limit"], unit),
        samples=f"{finding['stable_samples']:,} / {finding['candidate_samples']:,}",
        reason=finding["reason"],
    )


def _interval(low: float | None, high: float | None, unit: str) -> str:
    """The unit once; an end that is not known is a dash."""
    if low is None and high is None:
        return "–"
    last = _number(high, unit)
    first = _number(low, unit)
    return f"{first.split()[0] if high is not None else first} to {last}"


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    return f"{100 * value:.2f} %" if unit == "share" else f"{value:,.0f} ms" if unit == "ms" else f"{value:.3f}"


def _seen(seen: Mapping[str, Any] | None) -> str:
    if not seen or not seen["requests"]:
        return "no request has ended yet"
    bounds = f"{100 * seen['low']:.1f} to {100 * seen['high']:.1f} %"
    return f"{100 * seen['share']:.1f} % ({bounds}) of {seen['requests']:,} requests"
