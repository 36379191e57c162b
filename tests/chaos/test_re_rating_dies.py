"""Who rates requests again is killed (SIGKILL) in the middle, again and again, two at a time: each is adjusted once."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.installation import ROOT, Installation

NUM = 3000
KILLS = 4
SHELL = ("shell", "-v", "0", "-c")
SETUP = f"""
from datetime import UTC, datetime, timedelta
from billing.services.ledger import record_usage
from billing.services.re_rating import Span
from billing.services.re_rating_runs import ask_to_re_rate
from tests.billing.priced_usage import price, used
from tests.tenants.cast import tenant_with
old, at = price(1, 5, 0, 0), datetime(2026, 8, 15, tzinfo=UTC)
price(2, 3, 0, 0)
for name in ("acme", "globex", "initech"):
    tenant = tenant_with(name)
    ends = [at + timedelta(seconds=number // 7) for number in range({NUM} // 3)]
    record_usage(drafts=[used(tenant, f"{{name}}-{{n}}", each, tokens=(1, 0, 0), price=old) for n, each in enumerate(ends)])
span = Span("tiny", 2, at - timedelta(days=1), at + timedelta(days=1))
print(ask_to_re_rate(span=span, reason="the price was wrong", actor="test").id)
"""
WORK = """
from billing.services import re_rating
re_rating.BATCH = {batch}
print("begun", flush=True)
while re_rating.step({run_id}):
    pass
"""
FIGURES = """
import json
from django.db.models import Count, Sum
from billing.models import Adjustment, MonthSpend
from billing.re_rating_models import ReRating
from tenants.models import AuditEntry
sums = {"n": Count("id"), "records": Count("record", distinct=True), "sum": Sum("amount_picos")}
run, rows = ReRating.objects.get(), Adjustment.objects.aggregate(**sums)
spent = MonthSpend.objects.filter(key_id="", model="").aggregate(sum=Sum("amount_picos"))["sum"]
ends = AuditEntry.objects.filter(action="usage.re_rated").count()
own = {"requests": run.requests, "adjusted": run.adjusted, "amount": int(run.amount_picos), "is_over": run.ended_at is not None}
print(json.dumps({**own, **{name: int(value or 0) for name, value in rows.items()}, "spent": int(spent), "ends": ends}))
"""


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    made = Installation(tmp_path, database_url=os.environ.get("DATABASE_URL", ""))
    try:
        made.migrate()
        yield made
    finally:
        made.close()


def last_line(installation: Installation, script: str) -> Any:
    return json.loads(installation.manage(*SHELL, script).splitlines()[-1])


def begun(installation: Installation, run_id: int) -> list[subprocess.Popen[bytes]]:
    """Two processes that rate one request a transaction, and are at it."""
    command = [sys.executable, str(ROOT / "manage.py"), *SHELL, WORK.format(batch=1, run_id=run_id)]
    workers = [subprocess.Popen(command, env=installation.environment, stdout=subprocess.PIPE) for _ in range(2)]
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline() == b"begun\n"
    return workers


def test_each_request_is_adjusted_once_whenever_its_worker_dies(installation: Installation) -> None:
    run_id, chance, seen = last_line(installation, SETUP), random.Random(11), 0
    for _ in range(KILLS // 2):
        killed_at_work = 0
        for worker in begun(installation, run_id):
            time.sleep(chance.uniform(0.05, 0.4))
            killed_at_work += worker.poll() is None
            worker.kill()
            worker.communicate()
        assert killed_at_work == 2
        found = last_line(installation, FIGURES)
        assert found["n"] == found["records"] == found["adjusted"] == found["requests"] > seen
        assert found["sum"] == found["amount"] == -2 * found["n"] and found["spent"] == 5 * NUM + found["sum"]
        seen = found["n"]
    assert seen < NUM
    installation.manage(*SHELL, WORK.format(batch=500, run_id=run_id))
    whole = {"requests": NUM, "adjusted": NUM, "n": NUM, "records": NUM, "sum": -2 * NUM, "amount": -2 * NUM}
    assert last_line(installation, FIGURES) == {**whole, "spent": 3 * NUM, "is_over": True, "ends": 1}
