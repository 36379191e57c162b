"""What the ledger tells of a month is what the limiter counts: corrections at once, settlements on their way never lost.

available = budget − ledger − what was settled and is not in the ledger yet, whatever comes when.
"""

import random
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from billing.models import MonthSpend, UsageRecord
from billing.services.adjustments import adjust_usage, net_picos
from billing.services.ledger import UsageDraft, record_usage
from billing.services.open_months import close_month
from headway.money import PICOS_A_MICRO
from inference.gateway.state import Change, ControlState
from inference.gateway.tenant_rows import Spend
from inference.models import ControlChange
from inference.policy.decisions import Ask, Limit, LimitKind, Scope, ScopeKind, TenantTerms, TokenPrice, Usage
from inference.policy.limits import Limiter
from tenants.models import LimitKind as StoredKind
from tenants.models import Tenant
from tenants.services.keys import issue_api_key
from tenants.services.terms import set_limits
from tests.inference.gateway.usage_drafts import draft
from tests.tenants.cast import tenant_with

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
BUDGET = 10**9
MODEL = "tiny"
EVENTS = 60


class World:
    """A ledger, and a limiter that hears of it by the feed as a dispatcher does."""

    def __init__(self, tenant: Tenant, key_id: str) -> None:
        self.tenant, self.key_id, self.limiter = tenant, key_id, Limiter()
        self.tenant_id = str(tenant.id)
        self.count = 0
        self.waiting: list[UsageDraft] = []
        """Settled, and not in the ledger."""
        self.unacknowledged: list[UsageDraft] = []
        """In the ledger; the dispatcher has not heard so."""
        scopes = (Scope(ScopeKind.TENANT, self.tenant_id), Scope(ScopeKind.KEY, key_id))
        limits = tuple(Limit(scope, LimitKind.BUDGET, BUDGET) for scope in scopes)
        self.limiter.set_terms(TenantTerms(self.tenant_id, limits=limits), 0.0)
        self.hear()

    def hear(self, *, late: int = 0) -> None:
        """The newest rows; of months `late` rows ago."""
        rows = list(ControlChange.objects.order_by("id").values_list("id", "kind", "key", "payload"))
        month_ids = [row[0] for row in rows if row[1] == "month"]
        behind = month_ids[-1 - late] if late < len(month_ids) else 0
        state = ControlState()
        state.reload([Change(*row) for row in rows if row[1] != "month" or row[0] <= behind])
        for told in state.spend(self.tenant_id, now_s=NOW.timestamp()):
            self.tell(told)

    def tell(self, told: Spend) -> None:
        named = {"spent_picos": told.spent_picos, "raised_picos": told.raised_picos, "lowered_picos": told.lowered_picos}
        self.limiter.set_month(self.tenant_id, **named, ends_s=told.ends_s, now_s=NOW.timestamp(), scope=told.scope)

    def settle(self, micros: int, end_state: str = "done") -> None:
        self.count += 1
        name = f"req-{self.count}"
        price = TokenPrice(input_picos=PICOS_A_MICRO, cached_picos=PICOS_A_MICRO, output_picos=PICOS_A_MICRO)
        ask = Ask(id=name, tenant=self.tenant_id, key=self.key_id, model=MODEL, prompt_tokens=1, max_tokens=1, price=price)
        assert self.limiter.reserve(ask, NOW.timestamp()) == 1
        self.limiter.settle(name, Usage(amount_picos=micros * PICOS_A_MICRO), NOW.timestamp())
        self.waiting.append(self.draft(name, micros, end_state))

    def draft(self, name: str, micros: int, end_state: str) -> UsageDraft:
        named: dict[str, Any] = {"tenant_id": self.tenant_id, "key_id": self.key_id, "model": MODEL, "price_version": "1"}
        at_s = NOW.timestamp() - 60
        return draft(name, end_state, amount_picos=micros * PICOS_A_MICRO, started_at_s=at_s, ended_at_s=at_s + 1, **named)

    def record(self, num: int) -> None:
        taken, self.waiting = self.waiting[:num], self.waiting[num:]
        record_usage(drafts=taken, now=NOW)
        self.unacknowledged += taken

    def acknowledge(self) -> None:
        for each in self.unacknowledged:
            self.limiter.acknowledged(self.tenant_id, each.amount_picos or 0, key=self.key_id, model=MODEL)
        self.unacknowledged = []

    def used(self) -> list[int]:
        """Micro-dollars: of the tenant, and of its key."""
        return [use.used for use in self.limiter.snapshot().limits]

    def wanted(self) -> list[int]:
        on_the_way = sum(each.amount_picos or 0 for each in self.waiting)
        rows = MonthSpend.objects.filter(tenant_id=self.tenant.id, month="2026-11", model="")
        sums = {row.key_id: row.amount_picos for row in rows}
        return [(sums.get(name, 0) + on_the_way) // PICOS_A_MICRO for name in ("", self.key_id)]


@pytest.fixture
def world() -> World:
    tenant = tenant_with("acme")
    key_id = issue_api_key(tenant=tenant, name="k", actor="test").key.id
    set_limits(tenant=tenant, limits={StoredKind.BUDGET: BUDGET}, actor="test")
    set_limits(tenant=tenant, limits={StoredKind.BUDGET: BUDGET}, key_id=key_id, actor="test")
    return World(tenant, key_id)


def test_an_adjustment_is_off_the_budget_with_the_next_row_and_what_is_on_its_way_stays_counted(world: World) -> None:
    world.settle(500)
    world.record(1)
    world.acknowledge()
    world.settle(70)
    adjust(world, -400)
    world.hear()
    assert world.used() == world.wanted() == [170, 170]
    world.record(1)
    world.hear()
    world.acknowledge()
    assert world.used() == world.wanted() == [170, 170]


def test_a_lost_gateways_request_that_cost_less_in_the_end_is_counted_less(world: World) -> None:
    world.settle(500, "gateway_lost")
    world.record(1)
    world.acknowledge()
    world.settle(70)
    record_usage(drafts=[world.draft("req-1", 120, "done")], now=NOW)
    world.hear()
    assert world.used() == world.wanted() == [190, 190]


def test_a_dispatcher_that_takes_over_counts_what_was_corrected_before(world: World) -> None:
    world.settle(500)
    world.record(1)
    adjust(world, -400)
    adjust(world, 30)
    after = World(world.tenant, world.key_id)
    assert after.used() == world.wanted() == [130, 130]


def test_a_closed_months_correction_is_in_the_month_that_runs(world: World) -> None:
    at_s = datetime(2026, 10, 15, tzinfo=UTC).timestamp()
    october = msgspec.structs.replace(world.draft("old", 100, "done"), started_at_s=at_s, ended_at_s=at_s)
    record_usage(drafts=[october], now=NOW)
    close_month(tenant_id=world.tenant.id, month="2026-10")
    world.settle(500)
    world.record(1)
    adjust(world, -60, "old")
    world.hear()
    assert world.used() == world.wanted() == [440, 440]


def adjust(world: World, micros: int, request_id: str = "req-1") -> None:
    adjust_usage(
        tenant_id=world.tenant.id,
        request_id=request_id,
        amount_picos=micros * PICOS_A_MICRO,
        kind="correction",
        reason="wrong",
        actor="test",
        now=NOW,
    )


@pytest.mark.parametrize("seed", range(12))
def test_whatever_comes_when_what_is_available_is_the_budget_less_ledger_less_what_is_on_its_way(
    world: World, seed: int
) -> None:
    rng = random.Random(seed)
    world.settle(rng.randrange(1, 1000))
    for _ in range(EVENTS):
        recorded = list(UsageRecord.objects.values_list("request_id", flat=True))
        match rng.choice(("settle", "settle", "record", "acknowledge", "lower", "raise", "late")):
            case "settle":
                world.settle(rng.randrange(1, 1000))
            case "record":
                world.record(rng.randrange(1, 4))
            case "acknowledge":
                world.acknowledge()
            case "lower" if recorded:
                name = rng.choice(recorded)
                left = net_picos(UsageRecord.objects.get(request_id=name)) // PICOS_A_MICRO
                if left:
                    adjust(world, -rng.randrange(1, left + 1), name)
            case "raise" if recorded:
                adjust(world, rng.randrange(1, 500), rng.choice(recorded))
            case "late":
                world.hear(late=rng.randrange(1, 4))
        world.hear()
        assert world.used() == world.wanted()
