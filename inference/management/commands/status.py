from typing import Any

from django.utils import timezone

from billing.selectors import ReconciliationView, latest_reconciliation
from headway.command import HeadwayCommand
from headway.tables import table
from inference.selectors import CopyStatus, FleetStatus, ModelStatus, fleet_status

COPY_COLUMNS = ["weights of", "version", "on node", "state", "for", "size", "reason"]
POOL_COLUMNS = ["pool of", "at once", "may wait", "interactive", "standard", "batch (first token/between)", "replicas"]
COLUMNS = ["model", "version", "ready", "replica", "where", "state", "for", "reason"]


class Command(HeadwayCommand):
    help = (
        "Models, versions, replicas and the reasons for their states; node agents; gateways; the dispatcher's queue and limits."
    )

    def handle(self, *, json: bool, **_options: Any) -> None:
        from inference.wiring_dispatcher import look_at_dispatcher  # not at import: `--help` needs none of it

        status = fleet_status(timezone.now())
        seen = look_at_dispatcher(status.lease["address"] if status.lease else "")
        compared = latest_reconciliation()
        data = status.as_dict() | {"dispatcher": seen, "reconciliation": compared.as_dict() if compared else None}
        self.print_result(f"{_text(status, seen)}\n\n{_reconciliation(compared)}", data, as_json=json)


def _text(status: FleetStatus, seen: dict[str, Any] | None) -> str:
    rows = [row for model in status.models for row in _rows(model)]
    parts = [table(COLUMNS, rows) if rows else "no models: register one with manage.py register_model"]
    if status.models:
        parts.append(table(POOL_COLUMNS, [_pool_row(model) for model in status.models]))
    if status.nodes:
        parts.append(table(["node", "zone", "machine", "room for", "seen", "is"], [_node_row(node) for node in status.nodes]))
    if status.copies:
        parts.append(table(COPY_COLUMNS, [_copy_row(copy) for copy in status.copies]))
    if status.gateways:
        rows = [[g["gateway"], _behind(g["changes_behind"]), f"{g['process']} of {g['processes']}"] for g in status.gateways]
        parts.append(table(["gateway", "feed", "process"], rows))
    parts += _dispatcher(status.lease, seen)
    return "\n\n".join(parts)


def _node_row(node: dict[str, Any]) -> list[object]:
    room = node["max_replicas"] or None
    words = [word for word in ("cordoned", "lost") if node[f"is_{word}"]]
    return [node["name"], node["zone"], node["machine_kind"], room, f"{node['seen_s_ago']} s ago", ", ".join(words)]


def _copy_row(copy: CopyStatus) -> list[object]:
    size = f"{copy.bytes_done / 1e6:,.0f} MB"
    if copy.bytes_total > copy.bytes_done:
        size = f"{copy.bytes_done / 1e6:,.0f} of {copy.bytes_total / 1e6:,.0f} MB"
    return [copy.model, copy.version, copy.node, copy.state, f"{copy.since_s} s", size, copy.reason]


def _pool_row(model: ModelStatus) -> list[object]:
    pool = model.pool
    targets = [f"{target['ttft_ms']}/{target['inter_token_ms']} ms" for target in pool.targets.values()]
    return [model.id, f"{pool.min_in_flight}-{pool.max_in_flight}", pool.max_queued, *targets, pool.scaling.text]


def _rows(model: ModelStatus) -> list[list[object]]:
    head: list[object] = [model.id, model.version, f"{model.ready}/{model.wanted}"]
    if not model.replicas:
        return [[*head, None, None, None, None, "no replicas: manage.py scale, or register_replica"]]
    cells: list[list[object]] = [[r.id, r.node or r.url, r.state, f"{r.since_s} s", r.reason] for r in model.replicas]
    first, *rest = cells
    return [[*head, *first], *([" ", " ", " ", *row] for row in rest)]


def _dispatcher(lease: dict[str, Any] | None, seen: dict[str, Any] | None) -> list[str]:
    held = "nobody holds the dispatcher's lease"
    if lease is not None:
        where = lease["address"] or "given back"
        held = f"lease: {lease['holder']}, epoch {lease['epoch']}, {where}, renewed {lease['renewed_s_ago']} s ago"
    if seen is None:
        return [f"{held}\nno dispatcher answers"]
    limits = seen["limits"]
    parts = [
        f"{held}\ndispatcher: epoch {seen['epoch']}, {len(seen['gateways'])} gateways attached, {seen['in_flight']} running, "
        f"{seen['queued']} waiting, {seen['overcommitted']} overcommitted, {seen['leaked_slots']} slots leaked"
    ]
    queues = [
        [model, pool["in_flight"], pool["capacity"], *pool["queued_by_tier"].values()] for model, pool in seen["pools"].items()
    ]
    if queues:
        parts.append(table(["queue", "running", "slots", "interactive", "standard", "batch"], queues))
    speculating = [
        [replica, f"{100 * ratio:.0f} %"] for pool in seen["pools"].values() for replica, ratio in pool["acceptance"].items()
    ]
    if speculating:
        parts.append(table(["speculating replica", "tokens accepted"], speculating))
    in_use = [[use["scope"], use["id"], use["kind"], use["value"], use["used"], use["reserved"]] for use in limits["in_use"]]
    if in_use:
        parts.append(table(["limit of", "id", "kind", "value", "used", "reserved"], in_use))
    return parts


def _reconciliation(compared: ReconciliationView | None) -> str:
    if compared is None:
        return "reconciliation: the ledger was not compared with engines yet"
    found = "all explained"
    if not compared.is_clean:
        found = (
            f"UNEXPLAINED DRIFT of {compared.unexplained_prompt_tokens} prompt and {compared.unexplained_completion_tokens} "
            f"completion tokens, {compared.inconsistent_requests} inconsistent requests: see manage.py reconcile"
        )
    return f"reconciliation of {compared.started_at:%Y-%m-%d %H:%M} UTC: {found}; {compared.not_counted} engines not counted"


def _behind(changes: int) -> str:
    return "up to date" if changes == 0 else f"{changes} changes behind"
