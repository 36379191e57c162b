"""The Grafana dashboard asks for metrics that exist."""

import json
import re
from pathlib import Path

from inference.gateway.metrics import Metrics

DASHBOARD = Path(__file__).resolve().parents[2] / "platform" / "deploy" / "grafana-gateway.json"


def test_every_metric_of_the_dashboard_is_one_of_ours() -> None:
    ours = set()
    for family in Metrics().registry.collect():
        ours |= {family.name, f"{family.name}_total", f"{family.name}_bucket"}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = {name for panel in panels for target in panel["targets"] for name in re.findall(r"headway_\w+", target["expr"])}
    assert len(asked) > 10
    assert asked <= ours, asked - ours
