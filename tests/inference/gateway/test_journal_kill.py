"""kill -9 at any instant: what was answered is in the ledger, once; what was not is lost, and says so."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from urllib.parse import quote

import pytest
from django.db import connection

from billing.models import UsageRecord
from inference.gateway.drain import DrainTunables
from inference.gateway.journal import Journal, JournalTunables
from tests.inference.gateway.waiting import eventually

NUM_GATEWAYS = 40


def database_url() -> str:
    """The test's own database, as a setting for another process."""
    settings = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{settings['NAME']}"
    user, password, host = (quote(str(settings[name]), safe="") for name in ("USER", "PASSWORD", "HOST"))
    place = f":{settings['PORT']}" if settings["PORT"] else ""
    return f"postgresql://{user}:{password}@{place}/{settings['NAME']}?host={host}"


@pytest.mark.django_db(transaction=True)
def test_gateways_killed_at_random_moments_lose_nothing_that_was_answered_and_record_nothing_twice(tmp_path: Path) -> None:
    root = tmp_path / "journal"
    root.mkdir()
    script = Path(__file__).with_name("killed_gateways.py")
    environment = os.environ | {
        "DATABASE_URL": database_url(),
        "DJANGO_SETTINGS_MODULE": "headway.settings",
        "HEADWAY_HOME": str(tmp_path / "home"),
        "HEADWAY_LOG_LEVEL": "ERROR",
    }
    command = [sys.executable, str(script), str(root), str(NUM_GATEWAYS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    said = [line.split() for line in done.stdout.splitlines()]
    opened = {request_id for word, request_id in said if word == "open"}
    closed = {request_id for word, request_id in said if word == "close"}
    assert len({request_id.split("-")[0] for request_id in opened}) > NUM_GATEWAYS / 2, "most were killed while they worked"
    assert closed < opened

    successor = Journal(root, "successor", JournalTunables(drain=DrainTunables(interval_s=0.01, adopt_interval_s=0.02)))
    try:
        eventually(lambda: [path.name for path in root.iterdir()] == ["successor"], what="adoption of all", within_s=60)
    finally:
        successor.stop()

    ends = dict(UsageRecord.objects.values_list("request_id", "end_state"))
    assert UsageRecord.objects.count() == len(ends)
    assert {request_id for request_id in closed if ends.get(request_id) != "done"} == set()
    assert opened - ends.keys() == set()
    # One call of each gateway may have done its work and not lived to say so.
    unsaid = [request_id for request_id, end in ends.items() if request_id not in (closed if end == "done" else opened)]
    assert max(Counter(request_id.split("-")[0] for request_id in unsaid).values(), default=0) <= 1
    assert set(ends.values()) == {"done", "gateway_lost"}
    sequences = list(UsageRecord.objects.values_list("gateway", "journal_sequence"))
    assert len(set(sequences)) == len(sequences)
