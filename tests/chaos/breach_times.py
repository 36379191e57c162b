"""When a rollout's evidence crossed a gate, worked out afterwards from the ledger, and what came of it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from inference.policy.judging import judge
from inference.policy.rollout_gates import Gates, Outcome, Window
from tests.e2e.installation import Installation

Record = tuple[str, datetime, datetime, str, str, int, int, int, int | None, int, int]
_RECORDS = (
    "SELECT version, started_at, ended_at, end_state, finish_reason, attempts, resumes, parks, ttft_ms, total_ms, "
    "completion_tokens FROM billing_usagerecord WHERE model = ? ORDER BY ended_at"
)
_FAILED = "SELECT version, started_at, ended_at FROM billing_attempt WHERE model = ? AND outcome = 'failed'"


@dataclass(frozen=True)
class BreachTimes:
    """Seconds."""

    acted_on_s: float
    """From the end of the request that carried the evidence over the gate to the look that rolled back."""
    last_request_s: float
    """From there to the last request that a gateway gave the candidate; negative: it was given before."""

    @property
    def share_gone_s(self) -> float:
        return self.acted_on_s + max(0.0, self.last_request_s)


def breach_times(installation: Installation, model: str, shown: dict[str, Any]) -> BreachTimes:
    """Of a rollout that was rolled back; `shown` as `manage.py rollout show --json` tells it."""
    since = datetime.fromisoformat([event for event in shown["events"] if event["kind"] == "share"][-1]["at"])
    breached_at = datetime.fromisoformat(shown["breached_at"])
    records: list[Record] = [row for row in installation.query(_RECORDS, model) if row[1] >= since]
    failed = [row for row in installation.query(_FAILED, model) if row[1] >= since]
    given = [row[1] for row in records if row[0] == shown["to"]] + [row[1] for row in failed if row[0] == shown["to"]]
    crossed_at = _crossed_at(Gates(**shown["gates"]), shown, records, failed)
    return BreachTimes((breached_at - crossed_at).total_seconds(), (max(given) - breached_at).total_seconds())


def _crossed_at(gates: Gates, shown: dict[str, Any], records: list[Record], failed: list[tuple[Any, ...]]) -> datetime:
    moments = sorted({row[2] for row in records} | {row[2] for row in failed})
    for at in moments:
        stable, candidate = (_window(version, at, records, failed) for version in (shown["from"], shown["to"]))
        if judge(gates, stable=stable, candidate=candidate).outcome is Outcome.BREACH:
            return at
    raise AssertionError("the ledger shows no breach")


def _window(version: str, until: datetime, records: list[Record], failed: list[tuple[Any, ...]]) -> Window:
    """As billing/services/version_reads.py counts, of what had ended by then."""
    mine = [row for row in records if row[0] == version and row[2] <= until]
    done = [row for row in mine if row[3] == "done"]
    measured = [row for row in done if row[5:8] == (1, 0, 0) and row[8] is not None]
    pace = [(row[9] - (row[8] or 0)) / (row[10] - 1) for row in measured if row[10] > 1 and row[9] > (row[8] or 0)]
    return Window(
        answered=len(done),
        failed=sum(1 for row in failed if row[0] == version and row[2] <= until),
        too_long=sum(1 for row in done if row[4] == "length"),
        ttft_ms=tuple(sorted(float(row[8] or 0) for row in measured)),
        inter_token_ms=tuple(sorted(pace)),
    )
