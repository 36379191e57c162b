from typing import Any

from django.utils import timezone

from headway.command import HeadwayCommand
from headway.tables import table
from inference.selectors import FleetStatus, ModelStatus, fleet_status

COLUMNS = ["model", "version", "ready", "replica", "where", "state", "for", "reason"]


class Command(HeadwayCommand):
    help = "Models, versions, replicas and the reasons for their states; node agents; gateways."

    def handle(self, *, json: bool, **_options: Any) -> None:
        status = fleet_status(timezone.now())
        self.print_result(_text(status), status.as_dict(), as_json=json)


def _text(status: FleetStatus) -> str:
    rows = [row for model in status.models for row in _rows(model)]
    parts = [table(COLUMNS, rows) if rows else "no models: register one with manage.py register_model"]
    if status.nodes:
        parts.append(
            table(
                ["node", "machine", "seen"], [[n["name"], n["machine_kind"], f"{n['seen_s_ago']} s ago"] for n in status.nodes]
            )
        )
    if status.gateways:
        rows = [[g["gateway"], _behind(g["changes_behind"]), _share(g["process"], g["processes"])] for g in status.gateways]
        parts.append(table(["gateway", "feed", "share of each replica's slots"], rows))
    return "\n\n".join(parts)


def _rows(model: ModelStatus) -> list[list[object]]:
    head: list[object] = [model.id, model.version, f"{model.ready}/{model.wanted}"]
    if not model.replicas:
        return [[*head, None, None, None, None, "no replicas: manage.py scale, or register_replica"]]
    cells: list[list[object]] = [[r.id, r.node or r.url, r.state, f"{r.since_s} s", r.reason] for r in model.replicas]
    first, *rest = cells
    return [[*head, *first], *([" ", " ", " ", *row] for row in rest)]


def _share(process: int, processes: int) -> str:
    return "all" if processes == 1 else f"1/{processes}, at least one (process {process} of {processes})"


def _behind(changes: int) -> str:
    return "up to date" if changes == 0 else f"{changes} changes behind"
