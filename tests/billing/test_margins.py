"""What machines cost, by the hours that replicas existed, and what is left of revenue."""

import json
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from hypothesis import given
from hypothesis import strategies as st

from billing.models import UsageRecord
from billing.services.gpu_costs import machine_times, set_gpu_cost
from billing.services.ledger import record_usage
from billing.services.margins import margins, spread
from billing.services.reports import ReportQuery
from headway.errors import Conflict, InvalidInput
from inference.models import NodeHeartbeat, Pool, Replica, ReplicaState
from inference.services.registry import register_model
from inference.services.uptime import uptimes
from inference.services.version_spec import VersionSpec
from tenants.models import AuditEntry
from tests.billing.priced_usage import used
from tests.tenants.cast import tenant_with

pytestmark = pytest.mark.django_db

DAY = datetime(2026, 11, 10, tzinfo=UTC)
QUERY = ReportQuery(date(2026, 11, 10), date(2026, 11, 11))
LATER = DAY + timedelta(days=9)
USD = 10**6


def replica(
    name: str, *, model: str = "tiny", node: str = "n1", since: datetime, until: datetime | None = None, state: str = "ready"
) -> None:
    if not Pool.objects.filter(model__public_id=model).exists():
        register_model(public_id=model, actor="test", version=VersionSpec(weights_uri=f"/{model}", engine_environment="e"))
    pool = Pool.objects.get(model__public_id=model)
    state = ReplicaState.STOPPED if until else ReplicaState(state)
    made = Replica.objects.create(
        id=name, pool=pool, version=pool.version, node=node, upstream_model="m", state=state, changed_at=until or since
    )
    Replica.objects.filter(pk=made.pk).update(created_at=since)


@pytest.fixture
def machines() -> None:
    for node, kind in (("n1", "a100"), ("n2", "h100")):
        NodeHeartbeat.objects.create(name=node, machine_kind=kind, seen_at=DAY)


def cost(usd: int, since: datetime = DAY - timedelta(days=30), **scope: str) -> None:
    set_gpu_cost(cost_micros=usd * USD, effective_from=since, actor="test", **scope)


def day_costs(now: datetime = LATER) -> dict[str, tuple[int, int, int]]:
    times = machine_times(uptimes(starts_at=DAY, ends_at=DAY + timedelta(days=1), now=now))
    return {model: (time.replica_s, time.cost_picos, time.uncosted_s) for model, time in times.items()}


@pytest.mark.usefixtures("machines")
def test_a_replica_counts_from_when_it_was_made_until_it_was_stopped() -> None:
    cost(2, machine_kind="a100")
    replica("before", since=DAY - timedelta(days=3), until=DAY)
    replica("after", since=DAY + timedelta(days=1))
    assert day_costs() == {}
    replica("whole", since=DAY - timedelta(days=1))
    replica("ended", since=DAY - timedelta(days=1), until=DAY + timedelta(hours=5))
    replica("failed", since=DAY + timedelta(hours=23), state="failed")
    assert day_costs() == {"tiny": ((24 + 5 + 1) * 3600, 60 * 10**12, 0)}
    assert day_costs(now=DAY + timedelta(hours=2)) == {"tiny": (4 * 3600, 8 * 10**12, 0)}, "what is to come costs nothing yet"


@pytest.mark.usefixtures("machines")
def test_an_hour_costs_what_it_cost_then_and_a_models_own_cost_stands_before_its_machines() -> None:
    cost(2, machine_kind="a100")
    cost(4, DAY + timedelta(hours=12), machine_kind="a100")
    cost(9, machine_kind="h100")
    replica("r1", since=DAY - timedelta(days=1))
    replica("r2", node="n2", since=DAY - timedelta(days=1))
    assert day_costs()["tiny"][1] == (12 * 2 + 12 * 4 + 24 * 9) * 10**12
    cost(1, DAY + timedelta(hours=23), model="tiny")
    assert day_costs()["tiny"][1] == (12 * 2 + 11 * 4 + 23 * 9 + 2 * 1) * 10**12


@pytest.mark.usefixtures("machines")
def test_hours_without_a_cost_are_said_and_not_taken_for_free() -> None:
    replica("r1", since=DAY - timedelta(days=1))
    replica("outside", model="theirs", node="", since=DAY - timedelta(days=1))
    replica("unknown", model="lost", node="never-seen", since=DAY - timedelta(days=1))
    cost(3, DAY + timedelta(hours=18), machine_kind="a100")
    cost(5, machine_kind="external")
    assert day_costs() == {
        "tiny": (86_400, 18 * 10**12, 18 * 3600),
        "theirs": (86_400, 120 * 10**12, 0),
        "lost": (86_400, 0, 86_400),
    }


@pytest.mark.usefixtures("machines")
def test_costs_are_spread_by_output_and_uncached_input_and_margins_add_up() -> None:
    acme, beta = tenant_with("acme"), tenant_with("beta")
    cost(1, machine_kind="a100")
    for name, model in (("r1", "tiny"), ("r2", "big"), ("r3", "unused")):
        replica(name, model=model, since=DAY - timedelta(days=1))
    at = DAY + timedelta(hours=3)
    record_usage(
        drafts=[
            used(acme, "a", at, tokens=(100, 40, 10), amount_picos=50 * 10**12),
            used(beta, "b", at, tokens=(10, 0, 20), amount_picos=7 * 10**12),
            used(beta, "c", at, tokens=(1, 0, 1), model="big", amount_picos=3),
            used(beta, "of another day", at + timedelta(days=1), tokens=(900, 0, 900), amount_picos=1),
            used(beta, "no model of ours", at, tokens=(0, 0, 0), model="typo", end_state="refused", amount_picos=None),
        ],
        now=LATER,
    )
    found = margins(QUERY, now=LATER)
    a_day = 24 * 10**12
    assert {each.name: (each.revenue_picos, each.cost_picos) for each in found.models} == {
        "tiny": (57 * 10**12, a_day),
        "big": (3, a_day),
        "unused": (0, a_day),
        "typo": (0, 0),
    }
    assert {each.name: (each.revenue_picos, each.cost_picos) for each in found.tenants} == {
        str(acme.id): (50 * 10**12, a_day * 70 // 100),
        str(beta.id): (7 * 10**12 + 3, a_day * 30 // 100 + a_day),
    }
    assert found.idle_picos == a_day
    assert (
        sum(each.margin_picos for each in found.models) == sum(each.margin_picos for each in found.tenants) - found.idle_picos
    )
    assert UsageRecord.objects.count() == 5
    only = margins(ReportQuery(QUERY.first, QUERY.end, model="tiny", tenant_id=acme.id), now=LATER)
    assert [(each.name, each.cost_picos) for each in only.tenants] == [(str(acme.id), a_day * 70 // 100)]


@given(picos=st.integers(0, 10**18), work=st.lists(st.integers(0, 10**9), max_size=9))
def test_what_is_spread_adds_up_and_nobody_is_off_by_more_than_one(picos: int, work: list[int]) -> None:
    shares = spread(picos, Counter({str(number): each for number, each in enumerate(work)}))
    assert sum(shares.values()) == (picos if sum(work) else 0)
    assert all(abs(shares.get(str(n), 0) * sum(work) - picos * each) < sum(work) for n, each in enumerate(work) if sum(work))


def test_a_cost_is_set_by_command_is_on_record_and_is_never_changed() -> None:
    out = StringIO()
    call_command("set_gpu_cost", "1.25", machine_kind="a100", day="2026-11-01", json=True, stdout=out)
    assert json.loads(out.getvalue())["costs"][0]["usd_an_hour"] == "1.25"
    assert AuditEntry.objects.get(action="gpu_cost.set").target == "a100"
    with pytest.raises((Conflict, CommandError)):
        call_command("set_gpu_cost", "2", machine_kind="a100", day="2026-11-01", stdout=out)
    call_command("set_gpu_cost", "2", machine_kind="a100", day="2026-11-02", stdout=out)


@pytest.mark.parametrize(
    "wrong",
    [
        {"cost_micros": -1, "machine_kind": "a100"},
        {"cost_micros": 10**11, "machine_kind": "a100"},
        {"cost_micros": 1},
        {"cost_micros": 1, "machine_kind": "a100", "model": "tiny"},
        {"cost_micros": 1, "model": "nobody-knows"},
        {"cost_micros": 1, "machine_kind": "x" * 101},
    ],
)
def test_a_cost_of_nothing_or_of_two_things_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        set_gpu_cost(effective_from=DAY, actor="test", **wrong)
    assert not AuditEntry.objects.filter(action="gpu_cost.set").exists()
