"""Reconciliation as operators see it: the runs, and of each what every start of every engine has counted."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from billing.services.reconcile_runs import CUT_OFF
from billing.services.reconciliation_reads import findings_of, one_reconciliation, reconciliations
from dashboard.paging import Page, by_id

TONES = {"unexplained": "pill-bad", "explained": "pill-good", "not_counted": "pill-plain"}
KINDS = (("prompt", "Input"), ("completion", "Output"))
FRESH = timedelta(minutes=10)
"""A page looks again of itself for so long."""


@dataclass(frozen=True)
class RunRow:
    run: Any
    state: str
    tone: str

    @property
    def unexplained_tokens(self) -> int:
        tokens: int = self.run.unexplained_prompt_tokens + self.run.unexplained_completion_tokens
        return tokens


@dataclass(frozen=True)
class RunList:
    rows: list[RunRow]
    page: Page
    is_moving: bool


@dataclass(frozen=True)
class Figures:
    """Of one kind of tokens of one start of an engine."""

    label: str
    counted: int
    low: int
    high: int
    unexplained: int


@dataclass(frozen=True)
class CauseRow:
    name: str
    requests: int
    spans: list[tuple[int, int]]


@dataclass(frozen=True)
class FindingRow:
    values: dict[str, Any]
    tone: str
    figures: list[Figures]
    causes: list[CauseRow]


@dataclass(frozen=True)
class RunPage:
    row: RunRow
    findings: list[FindingRow]
    is_moving: bool


def run_list(asked: Mapping[str, str], now: datetime) -> RunList:
    page = by_id(reconciliations(), asked.get("page", ""))
    rows = [run_row(run, now) for run in page.rows]
    return RunList(rows, page, any(_is_moving(row, now) for row in rows))


def run_page(run_id: int, now: datetime) -> RunPage:
    """Raises NotFound."""
    run = one_reconciliation(run_id)
    row = run_row(run, now)
    return RunPage(row, [_finding(values) for values in findings_of(run)], _is_moving(row, now))


def run_row(run: Any, now: datetime) -> RunRow:
    if run.finished_at is None:
        is_late = now - run.started_at >= CUT_OFF
        return RunRow(run, "cut off", "pill-warn") if is_late else RunRow(run, "running", "")
    return RunRow(run, "clean", "pill-good") if run.is_clean else RunRow(run, "drift", "pill-bad")


def _is_moving(row: RunRow, now: datetime) -> bool:
    return row.state == "running" and now - row.run.started_at < FRESH


def _finding(values: dict[str, Any]) -> FindingRow:
    figures = [
        Figures(
            label,
            values[f"engine_{kind}_tokens"],
            values[f"low_{kind}_tokens"],
            values[f"high_{kind}_tokens"],
            values[f"unexplained_{kind}_tokens"],
        )
        for kind, label in KINDS
    ]
    causes = [
        CauseRow(name, work["count"], [(work[f"low_{kind}_tokens"], work[f"high_{kind}_tokens"]) for kind, _ in KINDS])
        for name, work in values["causes"].items()
    ]
    return FindingRow(values, TONES.get(values["verdict"], ""), figures, causes)
