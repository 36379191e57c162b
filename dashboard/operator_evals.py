"""Evals as operators see them: sets, gates and runs, one run, two side by side."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dashboard.paging import Page, by_id, by_number
from inference.services.evals.reads import (
    Comparison,
    Figures,
    Side,
    cases_of,
    changed_first,
    comparable_runs,
    compared,
    eval_gates,
    eval_runs,
    eval_sets,
    figures_of,
    held_against_baselines,
    samples_of,
    side_by_side,
    wall_s,
)
from inference.services.evals.runs import run_with
from inference.services.evals.sets import set_label
from inference.services.version_labels import version_label

MAX_SETS = 100
MAX_SHOWN_CHARS = 4_000
"""Of a prompt or an answer; the rest is in the API."""
SAMPLES_A_PAGE = 20
TONES = {"done": "pill-good", "failed": "pill-bad", "cancelled": "pill-plain", "running": "", "queued": ""}
OUTCOMES = ("failed", "passed", "error")


@dataclass(frozen=True)
class RunRow:
    run: Any
    comparison: Comparison | None

    @property
    def set_label(self) -> str:
        return set_label(self.run.eval_set)

    @property
    def version(self) -> str:
        return version_label(self.run.version)

    @property
    def tone(self) -> str:
        return TONES[self.run.state]

    @property
    def is_open(self) -> bool:
        return self.run.state in ("queued", "running")

    @property
    def score(self) -> str:
        if self.run.score is None:
            return ""
        return interval_text(self.run.score, self.run.score_low, self.run.score_high)

    @property
    def difference(self) -> str:
        """In points, against the baseline."""
        return difference_text(self.comparison) if self.comparison else ""

    @property
    def wall_s(self) -> float:
        return wall_s(self.run)


@dataclass(frozen=True)
class EvalsPage:
    rows: list[RunRow]
    """Regressions first, then the newest."""
    page: Page
    sets: list[tuple[Any, str]]
    gates: list[tuple[Any, str, str]]
    """(gate, label of its set, what it asks)."""

    @property
    def is_moving(self) -> bool:
        return any(row.is_open for row in self.rows)

    @property
    def num_regressions(self) -> int:
        return sum(1 for row in self.rows if row.comparison and row.comparison.is_regression)


@dataclass(frozen=True)
class Shown:
    """A sample with its question."""

    sample: Any
    question: str
    answer: str

    @property
    def state(self) -> str:
        return "error" if self.sample.error else "passed" if self.sample.has_passed else "failed"

    @property
    def tone(self) -> str:
        return "pill-good" if self.sample.has_passed else "pill-bad"


@dataclass(frozen=True)
class RunPage:
    row: RunRow
    figures: Figures
    tags: list[tuple[Any, str]]
    others: list[RunRow]
    """Of the same set, to compare with."""
    samples: list[Shown]
    page: Page
    outcome: str
    outcomes: tuple[str, ...] = OUTCOMES

    @property
    def score_so_far(self) -> str:
        score = self.figures.score
        return interval_text(score.value, score.low, score.high) if self.row.run.cases_done else "–"


@dataclass(frozen=True)
class Pair:
    new: Shown
    old: Shown
    change: str

    @property
    def tone(self) -> str:
        return {"better": "pill-good", "worse": "pill-bad"}.get(self.change, "pill-plain")


@dataclass(frozen=True)
class ComparePage:
    new: RunRow
    old: RunRow
    comparison: Comparison
    pairs: list[Pair]
    page: Page

    @property
    def difference(self) -> str:
        return difference_text(self.comparison)


@dataclass(frozen=True)
class SetPage:
    eval_set: Any
    label: str
    cases: list[tuple[Any, str, list[str]]]
    """(case, question, kinds of its checks)."""
    page: Page


def evals_page(asked: Mapping[str, str]) -> EvalsPage:
    page = by_id(eval_runs(model=asked.get("model", "")), asked.get("page", ""))
    comparisons = held_against_baselines(page.rows)
    rows = [RunRow(run, comparisons.get(run.id)) for run in page.rows]
    rows.sort(key=lambda row: not (row.comparison and row.comparison.is_regression))  # stable: each part newest first
    sets = [(each, set_label(each)) for each in eval_sets()[:MAX_SETS]]
    gates = [(gate, set_label(gate.eval_set), asks_text(gate)) for gate in eval_gates()]
    return EvalsPage(rows, page, sets, gates)


def run_page(run_id: int, asked: Mapping[str, str]) -> RunPage:
    """Raises UnknownEval."""
    run = run_with(run_id)
    outcome = asked.get("outcome", "") if asked.get("outcome") in OUTCOMES else ""
    page = by_number(samples_of(run, outcome=outcome), asked.get("page", ""), size=SAMPLES_A_PAGE)
    figures = figures_of(run)
    tags = [(each, interval_text(each.score.value, each.score.low, each.score.high)) for each in figures.tags]
    others = [RunRow(each, None) for each in comparable_runs(run)[:50]]
    shown = [shown_sample(sample) for sample in page.rows]
    return RunPage(RunRow(run, held_against_baselines([run]).get(run.id)), figures, tags, others, shown, page, outcome)


def compare_page(run_id: int, against_id: int, asked: Mapping[str, str]) -> ComparePage:
    """Raises UnknownEval, InvalidInput."""
    new, old = run_with(run_id), run_with(against_id)
    comparison = compared(new, old)
    page = by_number(changed_first(new, old), asked.get("page", ""), size=SAMPLES_A_PAGE)
    pairs = [_pair(side) for side in side_by_side(page.rows, old)]
    return ComparePage(RunRow(new, None), RunRow(old, None), comparison, pairs, page)


def set_page(eval_set: Any, asked: Mapping[str, str]) -> SetPage:
    page = by_number(cases_of(eval_set), asked.get("page", ""))
    cases = [(case, question_of(case), [_kind(check) for check in case.content["checks"]]) for case in page.rows]
    return SetPage(eval_set, set_label(eval_set), cases, page)


def shown_sample(sample: Any) -> Shown:
    return Shown(sample, question_of(sample.case), _cut(sample.text))


def question_of(case: Any) -> str:
    """Its messages, each with its role unless there is one alone."""
    messages = case.content["messages"]
    if len(messages) == 1:
        return _cut(messages[0]["content"])
    return _cut("\n\n".join(f"{message['role']}: {message['content']}" for message in messages))


def asks_text(gate: Any) -> str:
    """In words."""
    parts = [f"score at least {gate.min_score * 100:g} %"] if gate.min_score is not None else []
    if gate.max_drop is not None:
        parts.append(f"at most {gate.max_drop * 100:g} points below the stable version")
    return f"{' and '.join(parts)}, with {gate.confidence * 100:g} % confidence"


def interval_text(value: float, low: float, high: float) -> str:
    return f"{value * 100:.1f} % ({low * 100:.1f} to {high * 100:.1f})"


def difference_text(found: Comparison) -> str:
    each = found.difference
    return f"{each.value * 100:+.1f} points ({each.low * 100:+.1f} to {each.high * 100:+.1f})"


def _pair(side: Side) -> Pair:
    question = question_of(side.sample.case)
    new, old = (Shown(each, question, _cut(each.text)) for each in (side.sample, side.other))
    return Pair(new, old, side.change or ("both passed" if side.sample.has_passed else "neither passed"))


def _kind(check: dict[str, Any]) -> str:
    return str(check.get("id") or check["type"])


def _cut(text: str) -> str:
    left_out = len(text) - MAX_SHOWN_CHARS
    return f"{text[:MAX_SHOWN_CHARS]}\n… {left_out:,} more characters" if left_out > 0 else text
