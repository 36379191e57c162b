from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandParser

from headway.command import HeadwayCommand
from headway.tables import table
from inference.services.pool_overview import decisions_of
from inference.services.registry import pool_of
from inference.services.replica_starts import last_starts

COLUMNS = ["when", "before", "wanted", "reason", "problem", "by"]
MAX_ROWS = 10_000
START_COLUMNS = ["replica", "version", "node", "place s", "stage s", "load s", "certify s", "in all s"]


class Command(HeadwayCommand):
    help = "How many replicas of a model were to serve and why, newest first; and how long its last starts took, in parts."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model", help="the model's public id")
        parser.add_argument("--limit", type=int, default=20, help="of each, so many (default 20)")

    def handle(self, *, model: str, limit: int, json: bool, **_options: Any) -> None:
        pool, limit = pool_of(model), min(max(1, limit), MAX_ROWS)
        decisions = list(decisions_of(pool.pk).order_by("-id")[:limit])
        starts = last_starts(pool, limit=limit)
        rows = [[f"{d.at:%Y-%m-%d %H:%M:%S}", d.before, d.desired, d.reason, d.problem, d.decided_by] for d in decisions]
        start_rows = [[s.replica, s.version, s.node, s.place_s, s.stage_s, s.load_s, s.certify_s, s.total_s] for s in starts]
        parts = [
            table(COLUMNS, rows) if rows else "no decision",
            table(START_COLUMNS, start_rows) if start_rows else "no start",
        ]
        data = {
            "model": model,
            "decisions": [
                {
                    "at": d.at.isoformat(),
                    "before": d.before,
                    "desired": d.desired,
                    "reason": d.reason,
                    "evidence": d.evidence,
                    "problem": d.problem,
                    "by": d.decided_by,
                }
                for d in decisions
            ],
            "starts": [{**asdict(s), "at": s.at.isoformat()} for s in starts],
        }
        self.print_result("\n\n".join(parts), data, as_json=json)
