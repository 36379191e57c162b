"""How two versions of a model differ: what they are made of, what evals said of each, what they cost."""

from dataclasses import dataclass
from typing import Any

from dashboard.operator_evals import MAX_SETS, interval_text
from dashboard.templatetags.dashboard import price as price_text
from dashboard.templatetags.dashboard import usd_of_picos
from inference.services.evals.reads import newest_done, wall_s
from inference.services.evals.sets import set_label
from inference.services.registry_reads import VersionRow, compared

NOT_RUN = "not run"


@dataclass(frozen=True)
class ComparedRow:
    name: str
    before: str
    after: str
    runs: tuple[int, int] | None = None
    """Two eval runs that can be seen side by side: the newer version's first."""

    @property
    def is_same(self) -> bool:
        return self.before == self.after


def compared_rows(model: Any, before: VersionRow, after: VersionRow, list_price: Any) -> list[ComparedRow]:
    """`list_price`: what holds for the model, whichever version answers; None: it is free."""
    rows = [ComparedRow(each.name, each.before, each.after) for each in compared(model, before.label, after.label)]
    rows += _evals(before, after)
    price = (
        "free"
        if list_price is None
        else f"{price_text(list_price.input_micros)} in, {price_text(list_price.output_micros)} out"
    )
    return [*rows, ComparedRow("Price of a million tokens", price, price)]


def _evals(before: VersionRow, after: VersionRow) -> list[ComparedRow]:
    """A row for each set that one of the two has done, by its newest run."""
    found = newest_done([before.version.pk, after.version.pk])
    sets = {run.eval_set_id: set_label(run.eval_set) for run in found.values()}
    rows = []
    for set_id, label in sorted(sets.items(), key=lambda each: each[1])[:MAX_SETS]:
        old, new = (found.get((set_id, row.version.pk)) for row in (before, after))
        runs = (new.pk, old.pk) if old and new and old != new else None
        rows.append(ComparedRow(f"Eval {label}", _score(old), _score(new), runs))
    return rows


def _score(run: Any) -> str:
    if run is None or run.score is None:
        return NOT_RUN
    score = interval_text(run.score, run.score_low, run.score_high)
    return f"{score}, {run.cases_done:,} cases, {usd_of_picos(run.cost_picos)}, {wall_s(run):,.0f} s"
