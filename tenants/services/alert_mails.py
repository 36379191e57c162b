"""Events as mails to members: by role, as the tenant has set it for each kind; through the outbox."""

from collections.abc import Callable, Mapping
from typing import Any

from django.db import transaction
from django.utils.dateparse import parse_datetime

from headway.errors import InvalidInput
from headway.money import micros_to_usd
from tenants.models import AlertMail, EventType, Membership, Tenant
from tenants.services.audit import record_audit
from tenants.services.holding import hold_tenant
from tenants.services.webhooks import tell_webhooks
from workers.services.mail import queue_mail
from workers.services.site_links import site_url

DEFAULT_ROLES = (Membership.Role.OWNER.value, Membership.Role.BILLING.value)
MAILED = (EventType.KEY_EXPIRING, EventType.BUDGET_REACHED, EventType.MODEL_RETIRING, EventType.BALANCE_LOW)
SETTINGS_PATH = "/t/{tenant}/settings/"


def alert_roles(tenant: Tenant) -> dict[str, list[str]]:
    """Who is told, by kind of event."""
    kept = dict(AlertMail.objects.for_tenant(tenant).values_list("type", "roles"))
    return {event.value: kept.get(event.value, list(DEFAULT_ROLES)) for event in MAILED}


def set_alert_roles(*, tenant: Tenant, roles: Mapping[str, list[str]], actor: str) -> None:
    """`roles` by kind of event; an empty list: nobody is told. Kinds that are not named stay. Raises InvalidInput."""
    for kind, wanted in roles.items():
        if kind not in {event.value for event in MAILED}:
            raise InvalidInput(f"there are mails of {', '.join(event.value for event in MAILED)}", param=kind[:64])
        if not set(wanted) <= set(Membership.Role.values):
            raise InvalidInput(f"roles are {', '.join(Membership.Role.values)}", param=kind)
    with transaction.atomic():
        hold_tenant(tenant)
        before = alert_roles(tenant)
        for kind, wanted in roles.items():
            chosen = [role for role in Membership.Role.values if role in wanted]
            AlertMail.unscoped.update_or_create(tenant=tenant, type=kind, defaults={"roles": chosen})
        after = alert_roles(tenant)
        if after != before:
            record_audit(
                actor=actor, action="tenant.set_alert_mails", target=tenant.name, tenant=tenant, before=before, after=after
            )


def tell_alert(
    tenant: Tenant,
    type: EventType,  # noqa: A002
    occasion: str,
    data: dict[str, Any],
    *,
    by_mail: bool = True,
) -> bool:
    """By webhook and by mail in one transaction. False: this occasion was told before."""
    with transaction.atomic():
        if tell_webhooks(tenant=tenant, type=type, occasion=occasion, data=data) is None:
            return False
        if by_mail:
            mail_alert(tenant=tenant, type=type, data=data)
    return True


def mail_alert(*, tenant: Tenant, type: EventType, data: Mapping[str, Any]) -> int:  # noqa: A002
    """One mail to each member who is to be told; sent if and only if the transaction around commits. Returns how many."""
    members = Membership.objects.for_tenant(tenant).filter(role__in=alert_roles(tenant)[type.value], user__is_active=True)
    subject, text, path = _WORDS[type](tenant.name, data)
    found = [(member.user.email, member.role) for member in members.select_related("user") if member.user.email]
    settings_url = site_url(SETTINGS_PATH.format(tenant=tenant.name))
    for email, role in found:
        why = f"You are told as {role} of {tenant.name}; who is told is set at {settings_url}"
        queue_mail(to=email, subject=subject, text=f"{text}\n\n{site_url(path)}\n\n{why}\n")
    return len(found)


def _key_expiring(tenant: str, data: Mapping[str, Any]) -> tuple[str, str, str]:
    days = data["within_days"]
    within = f"within {days} day{'s' if days != 1 else ''}"
    text = (
        f"The API key {data['name']} (hw_live_{data['key']}) of {tenant} expires at {_utc(data['expires_at'])}.\n"
        "From then on programs that use it are refused. Rotate it: the new key works beside the old one for as long as you say."
    )
    return f"API key {data['name']} of {tenant} expires {within}", text, f"/t/{tenant}/keys/{data['key']}/"


def _budget_reached(tenant: str, data: Mapping[str, Any]) -> tuple[str, str, str]:
    whose = {"tenant": tenant, "key": f"API key {data['id']} of {tenant}", "model": f"{data['id']} at {tenant}"}[data["scope"]]
    spent, budget = (micros_to_usd(data[name]) for name in ("spent_micros", "budget_micros"))
    what_then = (
        "Requests that cost something are refused until the month ends or the limit is raised."
        if data["percent"] >= 100
        else "At 100 % requests that cost something are refused."
    )
    text = f"${spent} of the hard limit of ${budget} for {data['month']} ({data['time_zone']}) are spent.\n{what_then}"
    return f"{data['percent']} % of the hard limit of {whose} is spent", text, f"/t/{tenant}/limits/"


def _model_retiring(tenant: str, data: Mapping[str, Any]) -> tuple[str, str, str]:
    if "version" in data:
        text = (
            f"{tenant} stays on version {data['version']} of {data['model']}. "
            f"It is served until {_utc(data['retires_at'])}.\n"
            "From then on its requests are answered by the version that is stable. Try that before: let go of the pin."
        )
        return f"Version {data['version']} of {data['model']} retires", text, f"/t/{tenant}/models/"
    text = (
        f"The model {data['model']}, which {tenant} has used, is served until {_utc(data['retires_at'])}.\n"
        "After that requests for it are refused. The catalogue lists what else there is."
    )
    return f"The model {data['model']} retires", text, f"/t/{tenant}/models/"


def _balance_low(tenant: str, data: Mapping[str, Any]) -> tuple[str, str, str]:
    what = "is used up" if data["percent"] == 0 else f"is down to {data['percent']} % of what was paid in last"
    text = (
        f"${data['left_usd']} of credit are left to {tenant}.\n"
        "Without credit, requests that cost something are refused; what runs is not cut."
    )
    return f"The balance of {tenant} {what}", text, f"/t/{tenant}/billing/"


def _utc(text: str) -> str:
    at = parse_datetime(text)
    assert at is not None, "alerts write ISO 8601"
    return f"{at:%Y-%m-%d %H:%M} UTC"


_WORDS: dict[EventType, Callable[[str, Mapping[str, Any]], tuple[str, str, str]]] = {
    EventType.KEY_EXPIRING: _key_expiring,
    EventType.BUDGET_REACHED: _budget_reached,
    EventType.MODEL_RETIRING: _model_retiring,
    EventType.BALANCE_LOW: _balance_low,
}
