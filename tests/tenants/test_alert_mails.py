"""Alerts by mail: who is told, once, of what, and how a tenant changes it."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from billing.services.ledger import record_usage
from headway.errors import InvalidInput
from headway.money import PICOS_A_MICRO
from inference.models import Model
from tenants.models import AlertMail, AuditEntry, EventType, LimitKind, Tenant, User
from tenants.services.alert_mails import DEFAULT_ROLES, alert_roles, set_alert_roles, tell_alert
from tenants.services.alerts import announce_retirement, raise_budget_alerts, raise_expiry_alerts
from tenants.services.keys import issue_api_key
from tenants.services.terms import set_limits
from tenants.services.webhooks import add_endpoint
from tests.inference.gateway.usage_drafts import draft
from tests.tenants.cast import full_tenant
from tests.tenants.test_at_once import at_once
from tests.workers.broker import Broker
from workers.models import Mail, OutboxEntry

pytestmark = pytest.mark.django_db
AT = datetime(2026, 11, 15, 12, tzinfo=UTC)
KINDS = ("key.expiring", "budget.reached", "model.retiring", "balance.low")
TOLD = {"acme-owner@example.com", "acme-billing@example.com"}


@pytest.fixture(autouse=True)
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(monkeypatch)


@pytest.fixture
def acme() -> Tenant:
    return full_tenant("acme")[0]


def told() -> Counter[str]:
    return Counter(Mail.objects.values_list("to", flat=True))


def expiring(tenant: Tenant) -> None:
    issue_api_key(tenant=tenant, name="nightly", actor="test", expires_at=timezone.now() + timedelta(days=3))


def spend(tenant: Tenant, request_id: str, micros: int) -> None:
    of = {"tenant_id": str(tenant.id), "model": "tiny", "ended_at_s": AT.timestamp(), "amount_picos": micros * PICOS_A_MICRO}
    record_usage(drafts=[draft(request_id, "done", **of)])


def test_owners_and_billing_members_are_told_once_that_a_key_expires(acme: Tenant) -> None:
    expiring(acme)
    for _ in range(3):
        raise_expiry_alerts()
    assert told() == Counter(TOLD)
    mail = Mail.objects.filter(to="acme-owner@example.com").get()
    assert mail.subject == "API key nightly of acme expires within 7 days"
    assert "You are told as owner of acme" in mail.text and "/t/acme/keys/" in mail.text and "/t/acme/settings/" in mail.text
    assert OutboxEntry.objects.filter(kind="mail").count() == 2


def test_each_share_of_a_budget_is_told_once_with_its_figures(acme: Tenant) -> None:
    set_limits(tenant=acme, limits={LimitKind.BUDGET: 2_000_000}, actor="test")
    for number, micros in enumerate((999_999, 1, 0, 1_000_000)):
        spend(acme, f"r{number}", micros)
        raise_budget_alerts(AT)
    subjects = list(Mail.objects.filter(to="acme-billing@example.com").order_by("id").values_list("subject", flat=True))
    assert subjects == [f"{percent} % of the hard limit of acme is spent" for percent in (50, 80, 100)]
    first, *_, last = Mail.objects.filter(to="acme-billing@example.com").order_by("id")
    assert "$1.00 of the hard limit of $2.00 for 2026-11 (UTC)" in first.text
    assert "are refused until the month ends" in last.text


def test_a_model_that_goes_is_told_by_mail_to_those_that_used_it(acme: Tenant) -> None:
    """Who has a webhook and never used it hears of it there alone; who has neither hears nothing."""
    Model.objects.create(public_id="tiny")
    globex, hooli = full_tenant("globex")[0], full_tenant("hooli")[0]
    add_endpoint(tenant=globex, url="https://h.example/", events=["model.retiring"], actor="test")
    record_usage(drafts=[draft("r1", "done", tenant_id=str(acme.id), model="tiny", ended_at_s=timezone.now().timestamp())])
    at = datetime(2027, 1, 1, tzinfo=UTC)
    assert [announce_retirement(model="tiny", retires_at=at, actor="test") for _ in range(2)] == [2, 0]
    assert told() == Counter(TOLD)
    assert "is served until 2027-01-01 00:00 UTC" in Mail.objects.first().text  # type: ignore[union-attr]
    assert not AlertMail.objects.for_tenant(hooli).exists()


def test_a_tenant_says_who_is_told_of_what_and_may_switch_it_off(acme: Tenant) -> None:
    assert alert_roles(acme) == {kind: list(DEFAULT_ROLES) for kind in KINDS}
    changed = {"key.expiring": ["developer", "admin"], "budget.reached": []}
    set_alert_roles(tenant=acme, roles=changed, actor="user:ann")
    expiring(acme)
    raise_expiry_alerts()
    assert told() == Counter({"acme-admin@example.com", "acme-developer@example.com"})
    set_limits(tenant=acme, limits={LimitKind.BUDGET: 100}, actor="test")
    spend(acme, "r1", 100)
    assert raise_budget_alerts(AT) == 3, "webhooks are told all the same"
    assert Mail.objects.count() == 2
    entry = AuditEntry.objects.get(action="tenant.set_alert_mails")
    assert entry.before is not None and entry.after is not None
    assert entry.before["budget.reached"] == list(DEFAULT_ROLES) and entry.after["budget.reached"] == []
    set_alert_roles(tenant=acme, roles=changed, actor="user:ann")
    assert AuditEntry.objects.filter(action="tenant.set_alert_mails").count() == 1, "nothing has changed"


@pytest.mark.parametrize("roles", [{"test": ["owner"]}, {"nonsense": []}, {"key.expiring": ["emperor"]}])
def test_kinds_and_roles_that_there_are_not_are_refused_and_nothing_changes(acme: Tenant, roles: dict[str, list[str]]) -> None:
    with pytest.raises(InvalidInput):
        set_alert_roles(tenant=acme, roles={"budget.reached": [], **roles}, actor="user:ann")
    assert not AlertMail.objects.for_tenant(acme).exists()


def test_who_is_switched_off_or_has_no_address_gets_no_mail(acme: Tenant) -> None:
    User.objects.filter(username="acme-owner").update(is_active=False)
    User.objects.filter(username="acme-billing").update(email="")
    expiring(acme)
    assert raise_expiry_alerts() == 1
    assert not Mail.objects.exists()


def test_a_name_of_a_key_puts_no_line_into_the_head_of_a_mail(acme: Tenant) -> None:
    issue_api_key(tenant=acme, name="a\u2028Bcc: x@y.example", actor="test", expires_at=timezone.now() + timedelta(days=3))
    raise_expiry_alerts()
    assert all(len(mail.subject.splitlines()) == 1 for mail in Mail.objects.all())
    assert Mail.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_two_sweeps_at_once_mail_once(acme: Tenant) -> None:
    expiring(acme)
    assert at_once(raise_expiry_alerts, raise_expiry_alerts, raise_expiry_alerts) == {"done": 3}
    assert told() == Counter(TOLD)
    assert EventType.KEY_EXPIRING.value == "key.expiring"


def test_a_balance_that_is_low_is_told_by_mail_too(acme: Tenant) -> None:
    data = {"percent": 20, "left_usd": "1.5", "of_micros": 10_000_000}
    assert tell_alert(acme, EventType.BALANCE_LOW, "balance.low:g:20", data)
    assert not tell_alert(acme, EventType.BALANCE_LOW, "balance.low:g:20", data)
    mails = list(Mail.objects.values_list("to", "subject"))
    assert {to for to, _ in mails} == TOLD
    assert len(mails) == len(TOLD)
    assert "$1.5 of credit" in Mail.objects.all()[0].text
