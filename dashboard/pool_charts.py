"""How one pool did over the last hour or day against its targets, as charts and as the table of the same numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from inference.services.pool_minutes import Figure, pool_series
from inference.services.pool_overview import PoolOverview, TierRow

RANGES = (("hour", "Last hour"), ("day", "Last 24 hours"))
STEPS = {"hour": (timedelta(minutes=1), 60), "day": (timedelta(minutes=15), 96)}
"""Of each range: a step, and how many."""
Steps = list[dict[str, Figure]]


@dataclass(frozen=True)
class Line:
    name: str
    values: list[float | None]
    colour: int = 0
    is_target: bool = False

    @property
    def last(self) -> float | None:
        """The newest that is known."""
        return next((value for value in reversed(self.values) if value is not None), None)


@dataclass(frozen=True)
class Chart:
    key: str
    title: str
    unit: str
    lines: list[Line]
    note: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def data_id(self) -> str:
        return f"chart-{self.key}"

    @property
    def data(self) -> dict[str, Any]:
        """For charts.js."""
        lines = [
            {"name": line.name, "values": line.values, "colour": line.colour, "is_target": line.is_target}
            for line in self.lines
        ]
        return {"series": lines, "unit": self.unit, "stack": False, "zone": "UTC", "height": 180, **self.extra}


@dataclass(frozen=True)
class Row:
    label: str
    values: list[tuple[float | None, str]]
    """Each with its unit."""


@dataclass(frozen=True)
class PoolCharts:
    pool: PoolOverview
    range: str
    charts: list[Chart]
    rows: list[Row]
    """Newest first; steps of which nothing is known are left out."""
    choices: list[tuple[int, str]]
    ranges: tuple[tuple[str, str], ...] = RANGES

    @property
    def columns(self) -> list[str]:
        return [_column(chart, line) for chart, line in measured(self.charts)]

    @property
    def step_text(self) -> str:
        return "minute" if self.range == "hour" else "quarter of an hour"


def pool_charts(pools: list[PoolOverview], asked: Mapping[str, str], now: datetime) -> PoolCharts | None:
    """Of the pool that is asked for, else the first; None: there is no pool."""
    if not pools:
        return None
    pool = next((one for one in pools if str(one.id) == asked.get("pool")), pools[0])
    name = asked["range"] if asked.get("range") in STEPS else "hour"
    step, num_steps = STEPS[name]
    start = _begun(now, step) - step * (num_steps - 1)
    steps = pool_series(pool.id, start=start, step=step, num_steps=num_steps)
    starts = [start + step * number for number in range(num_steps)]
    extra = {"times": [int(at.timestamp()) for at in starts], "step_s": step.total_seconds()}
    charts = _charts(pool, steps, extra) if any(steps) else []
    return PoolCharts(pool, name, charts, _rows(charts, starts), [(one.id, one.model) for one in pools])


def measured(charts: list[Chart]) -> list[tuple[Chart, Line]]:
    return [(chart, line) for chart in charts for line in chart.lines if not line.is_target]


def _charts(pool: PoolOverview, steps: Steps, extra: dict[str, Any]) -> list[Chart]:
    tiers = [tier for tier in pool.tiers if any(f"ttft_ms.{tier.name}" in each for each in steps)]
    charts = [_ttft(tier, steps, extra) for tier in tiers]
    gaps = [Line("between tokens", _means(steps, "inter_token_ms"))]
    gaps += [
        _flat(f"{tier.name} target", tier.target_inter_token_ms, steps, 1 + number)
        for number, tier in enumerate(tiers or pool.tiers)
    ]
    queued = [Line(tier.name, _most(steps, f"queued.{tier.name}"), number) for number, tier in enumerate(pool.tiers)]
    caps = [
        Line("batch cap", _means(steps, "batch_cap")),
        Line("running", _means(steps, "running"), 1),
        _flat("most it may be", pool.pool.max_in_flight, steps, 6),
    ]
    jain = [Line("Jain index", _means(steps, "jain_index")), _flat("all alike", 1.0, steps, 6)]
    return [
        *charts,
        Chart("gap", "Between tokens", "ms", gaps, "mean of its replicas", extra),
        Chart("queue", "Waiting, by tier", "", queued, "the most of each step", extra),
        Chart("cap", "Batch cap and requests running", "mean", caps, "of one replica, on average", extra),
        Chart("jain", "Fairness between tenants", "ratio", jain, "of those that had to wait", extra),
    ]


def _ttft(tier: TierRow, steps: Steps, extra: dict[str, Any]) -> Chart:
    lines = [Line("median", _means(steps, f"ttft_ms.{tier.name}")), _flat("target", tier.target_ttft_ms, steps, 1)]
    return Chart(f"ttft-{tier.name}", f"First token, {tier.name}", "ms", lines, "", extra)


def _means(steps: Steps, name: str) -> list[float | None]:
    return [each[name].mean if name in each else None for each in steps]


def _most(steps: Steps, name: str) -> list[float | None]:
    return [each[name].most if name in each else None for each in steps]


def _flat(name: str, value: float, steps: Steps, colour: int) -> Line:
    return Line(name, [value] * len(steps), colour, is_target=True)


def _rows(charts: list[Chart], starts: list[datetime]) -> list[Row]:
    lines, rows = measured(charts), []
    for at in reversed(range(len(starts))):
        values = [(line.values[at], chart.unit) for chart, line in lines]
        if any(value is not None for value, _ in values):
            rows.append(Row(f"{starts[at].astimezone(UTC):%Y-%m-%d %H:%M}", values))
    return rows


def _column(chart: Chart, line: Line) -> str:
    return chart.title if line.name in {"median", "between tokens", "Jain index"} else f"{_SHORT[chart.key]}{line.name}"


_SHORT = {"queue": "Waiting, ", "cap": "On a replica, "}


def _begun(now: datetime, step: timedelta) -> datetime:
    """When the step that is under way began."""
    return now - timedelta(seconds=now.timestamp() % step.total_seconds())
