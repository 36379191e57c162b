from typing import Any

from django.core.management.base import CommandParser

from headway.command import HeadwayCommand
from headway.tables import table
from inference.evals.scores import Interval
from inference.services.evals.reads import Comparison, Figures, compared, comparison_values, figures_of, run_values
from inference.services.evals.runs import run_with

LABELS = ("eval_set", "model", "version", "state", "reason", "cases", "cases_done", "passed", "errors", "cost_usd", "wall_s")


class Command(HeadwayCommand):
    help = "What an eval run came to: score with its 95 % interval, by tag; with --against, the difference to another run."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("run", type=int, help="its number")
        parser.add_argument("--against", type=int, help="a run of the same set")

    def handle(self, *, run: int, against: int | None, json: bool, **_options: Any) -> None:
        found = run_with(run)
        values, figures = run_values(found), figures_of(found)
        comparison = compared(found, run_with(against)) if against is not None else None
        data = values | {
            "checks": figures.checks,
            "checks_passed": figures.checks_passed,
            "tags": [
                {"tag": each.tag, "cases": each.cases, "passed": each.passed, "low": each.score.low, "high": each.score.high}
                for each in figures.tags
            ],
            "comparison": comparison_values(comparison) if comparison else None,
        }
        self.print_result(_text(values, figures, comparison), data, as_json=json)


def _text(values: dict[str, Any], figures: Figures, comparison: Comparison | None) -> str:
    rows = [[name, values[name]] for name in LABELS if values[name] not in ("", None)]
    rows += [["score", _shown(figures.score)], ["checks passed", f"{figures.checks_passed} of {figures.checks}"]]
    parts = [table([f"run {values['id']}", ""], rows)]
    if figures.tags:
        tags = [[each.tag, f"{each.passed} of {each.cases}", _shown(each.score)] for each in figures.tags]
        parts.append(table(["tag", "passed", "score"], tags))
    if comparison is not None:
        parts.append(_compared(comparison))
    return "\n\n".join(parts)


def _compared(found: Comparison) -> str:
    word = "worse" if found.is_regression else "better" if found.is_improvement else "no difference is shown"
    rows: list[list[object]] = [
        ["passed in this run alone", found.paired.only_new],
        [f"passed in run {found.old.id} alone", found.paired.only_old],
        ["passed in both, in neither", f"{found.paired.both}, {found.paired.neither}"],
        ["difference, points", _shown(found.difference)],
        ["McNemar's p", f"{found.p_value:.4f}"],
        ["so", word],
    ]
    return table([f"against run {found.old.id}", ""], rows)


def _shown(interval: Interval) -> str:
    return f"{interval.value * 100:.1f} ({interval.low * 100:.1f} to {interval.high * 100:.1f})"
