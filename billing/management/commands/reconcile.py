from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser

from billing.selectors import ReconciliationView, latest_reconciliation
from billing.services.reconcile_runs import reconcile_now
from headway.command import HeadwayCommand
from headway.errors import InvalidInput
from headway.tables import table

COLUMNS = ["engine", "epoch", "counted", "tokens", "engine counted", "explained", "unexplained", "verdict"]
CAUSE_COLUMNS = ["engine", "epoch", "cause", "requests", "prompt", "completion"]


class Command(HeadwayCommand):
    help = "Compare the ledger with what the engines have counted. Exits 1 on drift that nothing explains."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--since", metavar="DATE", help="engines that were counted since then (two days ago); UTC")

    def handle(self, *, since: str | None, json: bool, **_options: Any) -> None:
        reconcile_now(since=None if since is None else _time(since))
        found = latest_reconciliation()
        assert found is not None, "it was made just now"
        self.print_result(_text(found), found.as_dict(), as_json=json)
        if not found.is_clean:
            raise CommandError("there is drift that nothing explains: docs/operations.md says what to do")


def _time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"--since takes a date such as 2026-11-01, not {text!r}", param="since") from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _text(found: ReconciliationView) -> str:
    if not found.findings:
        return "no engine was counted"
    rows: list[list[object]] = []
    causes: list[list[object]] = []
    for each in found.findings:
        head: list[object] = [each["replica"], each["replica_epoch"]]
        counted = f"{each['counted_at']:%Y-%m-%d %H:%M:%S}" if each["counted_at"] else ""
        for kind in ("prompt", "completion"):
            low, high = each[f"low_{kind}_tokens"], each[f"high_{kind}_tokens"]
            drift = each[f"unexplained_{kind}_tokens"]
            figures: list[object] = [each[f"engine_{kind}_tokens"], _range(low, high), f"{drift:+d}" if drift else "0"]
            rows.append([*head, counted, kind, *figures, each["verdict"]])
        causes += [[*head, cause, *_cause(work)] for cause, work in each["causes"].items()]
        if each["reason"]:
            causes.append([*head, each["reason"], None, None, None])
        if each["inconsistent_requests"]:
            causes.append([*head, f"do not agree: {' '.join(each['inconsistent_requests'])}", None, None, None])
    return f"{table(COLUMNS, rows)}\n\n{table(CAUSE_COLUMNS, causes)}" if causes else table(COLUMNS, rows)


def _cause(work: dict[str, int]) -> list[object]:
    spans = [_range(work[f"low_{kind}_tokens"], work[f"high_{kind}_tokens"]) for kind in ("prompt", "completion")]
    return [work["count"], *spans]


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"
