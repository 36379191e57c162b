import pytest

from tenants.errors import NotAllowed, UnknownPlan
from tenants.models import LimitKind, Plan, Tenant
from tenants.selectors import plan_of, terms_in_force
from tenants.services.plan_choice import choose_plan, plans_on_offer, preview_plan_change
from tenants.services.tenants import create_tenant
from tenants.services.terms import define_plan, set_limits, set_plan

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Tenant:
    tenant = create_tenant(name="acme", actor="test")
    set_plan(tenant=tenant, plan="free", actor="test")
    return tenant


def test_the_plans_we_ship() -> None:
    assert set(Plan.objects.values_list("name", flat=True)) == {"default", "free", "pay-as-you-go", "prepaid", "enterprise"}
    assert Plan.objects.get(name="enterprise").salt_per_key


def test_a_preview_names_every_field_that_changes_and_changes_nothing(acme: Tenant) -> None:
    changes = {change.field: (change.before, change.after) for change in preview_plan_change(acme, "pay-as-you-go")}
    assert changes == {
        "plan": ("free", "pay-as-you-go"),
        "weight": (0.5, 1.0),
        "tier_ceiling": ("standard", "interactive"),
        "default_max_tokens": (512, 4096),
        "requests_per_minute": (20, 600),
        "input_tokens_per_minute": (20_000, 400_000),
        "output_tokens_per_minute": (5_000, 100_000),
        "concurrent_requests": (2, 64),
    }
    assert plan_of(acme).name == "free"


def test_a_limit_of_its_own_does_not_change_with_the_plan(acme: Tenant) -> None:
    set_limits(tenant=acme, limits={LimitKind.REQUESTS: 7}, actor="test")
    assert "requests_per_minute" not in {change.field for change in preview_plan_change(acme, "pay-as-you-go")}


def test_the_preview_is_what_then_holds(acme: Tenant) -> None:
    changes = {change.field: change.after for change in preview_plan_change(acme, "prepaid")}
    choose_plan(tenant=acme, plan="prepaid", actor="user:ann")
    acme.refresh_from_db()
    terms = terms_in_force(acme)
    limits = {limit.kind: limit.value for limit in terms.limits}
    for field, after in changes.items():
        assert limits.get(field, getattr(terms, field, None)) == after, field
    assert preview_plan_change(acme, "prepaid") == []


def test_what_is_agreed_upon_is_not_chosen(acme: Tenant) -> None:
    for plan in ("enterprise", "default"):
        with pytest.raises(NotAllowed):
            choose_plan(tenant=acme, plan=plan, actor="user:ann")
    with pytest.raises(UnknownPlan):
        choose_plan(tenant=acme, plan="platinum", actor="user:ann")
    assert plan_of(acme).name == "free"
    assert {plan.name for plan in plans_on_offer(acme)} == {"free", "pay-as-you-go", "prepaid"}


def test_a_plan_is_defined_with_discount_and_salt() -> None:
    plan = define_plan(name="gold", actor="test", discount_percent=15, salt_per_key=True, is_self_service=True)
    assert (plan.discount_percent, plan.salt_per_key, plan.is_self_service) == (15, True, True)
