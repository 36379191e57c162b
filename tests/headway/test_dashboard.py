"""The Grafana dashboard and the alerts ask for metrics that exist."""

import json
import re
from pathlib import Path

import yaml

from billing.services.drift_figures import DriftFigures
from dashboard.metrics import registry_of
from inference.gateway.metrics import Metrics
from inference.services.fleet_figures import PoolFigures, RolloutFigures

ROLLOUT = RolloutFigures(state="canary", changed_s=1.0, share_ratio=0.05, is_waiting_for_approval=False)
POOL = PoolFigures("m", True, 1, {"desired": 1}, {"idle": 1}, False, 0, 0.0, {"total": 1.0}, ROLLOUT)
DEPLOY = Path(__file__).resolve().parents[2] / "platform" / "deploy"
FOUND = DriftFigures(finished_s=1.0, unexplained_tokens={("vllm", "prompt"): 0}, inconsistent_requests=0, not_counted=0)


def ours() -> set[str]:
    found = set()
    for registry in (Metrics().registry, registry_of(FOUND, [POOL])):
        for family in registry.collect():
            found |= {family.name, f"{family.name}_total", f"{family.name}_bucket"}
    return found


def names_in(*expressions: str) -> set[str]:
    return {name for each in expressions for name in re.findall(r"headway_\w+", each)}


def test_every_metric_of_the_dashboard_is_one_of_ours() -> None:
    panels = json.loads((DEPLOY / "grafana-gateway.json").read_text())["panels"]
    asked = names_in(*(target["expr"] for panel in panels for target in panel["targets"]))
    assert len(asked) > 10 and {"headway_unexplained_drift_tokens", "headway_rollout_state"} <= asked
    assert asked <= ours(), asked - ours()
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_every_alert_asks_for_metrics_of_ours_and_says_where_to_look() -> None:
    groups = yaml.safe_load((DEPLOY / "prometheus-alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    asked = names_in(*(rule["expr"] for rule in rules))
    assert "headway_unexplained_drift_tokens" in asked
    assert asked <= ours(), asked - ours()
    for rule in rules:
        assert rule["labels"]["severity"] in ("page", "warn") and rule["annotations"]["description"], rule["alert"]
