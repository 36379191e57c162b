"""What an operator sets of a pool: refused whole or done whole, told to the data plane, written down, shown."""

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from headway.clock import FakeClock
from headway.errors import InvalidInput
from inference.dispatch.host import BrainHost
from inference.errors import UnknownModel
from inference.gateway.state import Change, ControlState
from inference.models import ControlChange, Pool
from inference.policy.brain_tunables import DEFAULT_TARGETS
from inference.policy.decisions import Tier, TierTargets
from inference.services import control
from inference.services.pools import set_pool
from inference.services.registry import register_model, register_replica
from tenants.models import AuditEntry

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def model() -> None:
    register_model(public_id="m", actor="test")
    register_replica(public_id="m", url="http://127.0.0.1:9000", kind="vllm", actor="test")


def known() -> ControlState:
    """As the data plane knows it."""
    state = ControlState()
    state.apply([Change(*row) for row in control.newest_rows()])
    return state


def test_targets_and_bounds_reach_the_data_plane_and_what_is_not_set_is_the_default() -> None:
    set_pool(
        public_id="m",
        changes={"interactive_ttft_ms": 200, "batch_inter_token_ms": 900, "min_in_flight": 3, "max_in_flight": 12},
        actor="op",
    )
    entry = known().model("m")
    assert entry is not None
    assert (entry.min_in_flight, entry.max_in_flight) == (3, 12)
    assert entry.targets == {
        Tier.INTERACTIVE: TierTargets(0.2, 0.05),
        Tier.STANDARD: DEFAULT_TARGETS[Tier.STANDARD],
        Tier.BATCH: TierTargets(30.0, 0.9),
    }
    replica = ControlChange.objects.filter(kind="replica").latest("id").payload
    assert replica is not None and replica["max_in_flight"] == 12
    audit = AuditEntry.objects.get(action="pool.set")
    assert audit.actor == "op" and audit.before is not None and audit.after is not None
    assert (audit.before["max_in_flight"], audit.after["max_in_flight"]) == (16, 12)


def test_none_goes_back_to_the_default() -> None:
    set_pool(public_id="m", changes={"interactive_ttft_ms": 200}, actor="op")
    set_pool(public_id="m", changes={"interactive_ttft_ms": None}, actor="op")
    entry = known().model("m")
    assert entry is not None and entry.targets == dict(DEFAULT_TARGETS)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"interactive_ttft_ms": 2500}, "stricter"),  # b132: standard's default is 2 s
        ({"batch_inter_token_ms": 10, "max_in_flight": 20}, "stricter"),
        ({"interactive_ttft_ms": 0}, "from 1 to"),
        ({"min_in_flight": 17}, "must not be above"),
        ({"max_in_flight": 0}, "from 1 to"),
        ({"max_queued": -1}, "from 0 to"),
    ],
)
def test_b132_what_is_out_of_order_or_range_is_refused_and_changes_nothing(changes: dict[str, int | None], says: str) -> None:
    before = Pool.objects.values().get()
    rows = ControlChange.objects.count()
    with pytest.raises(InvalidInput, match=says):
        set_pool(public_id="m", changes=changes, actor="op")
    assert (Pool.objects.values().get(), ControlChange.objects.count()) == (before, rows)
    assert not AuditEntry.objects.filter(action="pool.set").exists()


def test_a_model_nobody_has_registered_is_unknown() -> None:
    with pytest.raises(UnknownModel):
        set_pool(public_id="nobody", changes={"max_queued": 1}, actor="op")


def test_the_brain_holds_each_pool_to_its_own_targets() -> None:
    register_model(public_id="other", actor="test")
    set_pool(public_id="m", changes={"interactive_inter_token_ms": 20, "min_in_flight": 2}, actor="op")
    host = BrainHost(known(), FakeClock())
    host.refresh_routes()
    pools = {model: pools.main for model, pools in host.brain._models.items()}
    assert pools["m"]._load.caps.targets[Tier.INTERACTIVE].inter_token_s == 0.02
    assert pools["other"]._load.caps.targets == dict(DEFAULT_TARGETS)


def test_targets_out_of_order_in_the_feed_leave_the_defaults_and_the_model_served() -> None:
    state = ControlState()
    payload = {"created": 1, "pool": "p", "version": "", "max_in_flight": 4, "max_queued": 4}
    state.apply([Change(1, "model", "m", payload | {"targets_ms": {"interactive_ttft_ms": 9000}})])
    entry = state.model("m")
    assert entry is not None and entry.targets == dict(DEFAULT_TARGETS)


# The command


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("set_pool", *arguments, stdout=out)
    return out.getvalue()


def test_the_command_sets_and_prints_what_holds_and_status_shows_it() -> None:
    said: Any = json.loads(run("m", "--interactive-ttft-ms", "300", "--min-in-flight", "2", "--json"))
    assert said["targets"]["interactive"] == {"ttft_ms": 300, "inter_token_ms": 50}
    assert (said["min_in_flight"], said["max_in_flight"], said["max_queued"]) == (2, 16, 256)
    assert "2 to 16 requests at once" in run("m")
    out = StringIO()
    call_command("status", "--json", stdout=out)
    assert json.loads(out.getvalue())["models"][0]["pool"] == said
    out = StringIO()
    call_command("status", stdout=out)
    assert "300/50 ms" in out.getvalue() and "2-16" in out.getvalue()
    assert "500 ms" in run("m", "--interactive-ttft-ms", "default")


@pytest.mark.parametrize(
    "arguments", [("m", "--interactive-ttft-ms", "soon"), ("nobody", "--max-queued", "3"), ("m", "--max-queued", "-3")]
)
def test_what_is_wrong_is_an_error(arguments: tuple[str, ...]) -> None:
    with pytest.raises((CommandError, SystemExit)):
        run(*arguments)
