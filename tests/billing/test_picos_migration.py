"""An installation of the release before is brought up to date: amounts a million times as many, months, and days made of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OLD = """
import uuid
from datetime import UTC, datetime
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
targets = [("billing", "0006_parks"), ("tenants", "0008_names_whatever_their_case"), ("inference", "0004_lease_members")]
apps = MigrationExecutor(connection).loader.project_state(targets).apps
plan = apps.get_model("tenants", "Plan").objects.create(name="gold", discount_percent=15)
tenant = apps.get_model("tenants", "Tenant").objects.create(id=uuid.UUID(int=7), name="acme", time_zone="Asia/Tokyo", plan=plan)
apps.get_model("inference", "ControlChange").objects.create(kind="terms", key=str(tenant.id), payload={"plan": "gold"})
edge = datetime(2026, 11, 30, 15, tzinfo=UTC)
rows = [("before", tenant.id, edge.replace(hour=14, minute=59), 13), ("after", tenant.id, edge, 7)]
rows += [("free", tenant.id, datetime(2026, 9, 1, tzinfo=UTC), None), ("stranger", uuid.UUID(int=8), edge, 5)]
for name, tenant_id, at, micros in rows:
    apps.get_model("billing", "UsageRecord").objects.create(
        request_id=name, tenant_id=tenant_id, key_id="k", route="/", model="m", version="v1", tier="standard", gateway="g",
        usage_source="engine", end_state="done", journal_sequence=0, started_at=at, ended_at=at, recorded_at=at,
        amount_micros=micros, prompt_tokens=3,
    )
"""
NEW = """
import json
from billing.models import MonthSpend, UsageDay, UsageHour, UsageQuarter, UsageRecord
from inference.models import ControlChange
records = list(UsageRecord.objects.order_by("id").values_list("request_id", "billing_month", "amount_picos"))
whole = MonthSpend.objects.filter(key_id="", model="").order_by("month", "amount_picos").values_list("month", "amount_picos")
tables = (UsageQuarter, UsageHour, UsageDay)
sums = [[sum(row.amount_picos for row in table.objects.all()), table.objects.filter(version="v1").count()] for table in tables]
days = [at.isoformat() for at in UsageDay.objects.order_by("starts_at").values_list("starts_at", flat=True)]
terms = ControlChange.objects.filter(kind="terms").latest("id").payload
print(json.dumps({"records": records, "months": list(whole), "sums": sums, "days": days, "terms": terms}))
"""


def manage(home: Path, *arguments: str) -> str:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("HEADWAY_", "DJANGO_", "DATABASE_"))
    }
    environment["HEADWAY_HOME"] = str(home)
    command = [sys.executable, str(ROOT / "manage.py"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_the_release_before_recorded_is_the_same_money(tmp_path: Path) -> None:
    manage(tmp_path, "migrate", "-v0", "tenants", "0008")
    manage(tmp_path, "migrate", "-v0", "inference", "0004")
    manage(tmp_path, "migrate", "-v0", "billing", "0006")
    manage(tmp_path, "shell", "-v0", "-c", OLD)
    manage(tmp_path, "migrate", "-v0")
    found = json.loads(manage(tmp_path, "shell", "-v0", "-c", NEW))
    assert found["records"] == [
        ["before", "2026-11", 13_000_000],
        ["after", "2026-12", 7_000_000],
        ["free", "2026-09", None],
        ["stranger", "2026-11", 5_000_000],
    ]
    assert found["months"] == [["2026-11", 5_000_000], ["2026-11", 13_000_000], ["2026-12", 7_000_000]]
    assert found["sums"] == [[25_000_000, 4]] * 3
    assert found["days"] == [
        "2026-08-31T15:00:00+00:00",
        "2026-11-29T15:00:00+00:00",
        "2026-11-30T00:00:00+00:00",
        "2026-11-30T15:00:00+00:00",
    ]
    assert found["terms"] == {"plan": "gold", "discount_percent": 15}
