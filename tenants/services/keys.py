"""API keys: issue, change, rotate, disable, hand over, revoke. Each change reaches every gateway within a second."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from headway.errors import Conflict, InvalidInput
from inference.services import control
from tenants.access import Scope
from tenants.errors import AlreadyRotated, NotAllowed, UnknownKey
from tenants.models import ApiKey, Limit, LimitKind, Tenant, User
from tenants.services.audit import record_audit
from tenants.services.holding import hold_tenant
from tenants.services.key_bounds import Asker, check_limits_within, check_may_give, check_may_touch, limits_of_new_key
from tenants.services.key_format import new_key
from tenants.services.key_settings import KeySettings, check_settings, settings_of
from tenants.services.terms import set_limits

MAX_KEYS = 1000
"""Not revoked, of one tenant."""
OVERLAPS_H = (0, 1, 24)
NARROWED_FIELDS = ("name", "scopes", "allowed_models", "allowed_addresses", "tier_ceiling", "expires_at")


@dataclass(frozen=True)
class IssuedKey:
    """The one time the whole key is known."""

    key: ApiKey
    text: str = field(repr=False)


@dataclass(frozen=True)
class RevokedKey:
    key: ApiKey
    change_id: int  # once a gateway has applied this change, it refuses the key
    was_revoked_already: bool


def issue_api_key(
    *,
    tenant: Tenant,
    name: str,
    actor: str,
    member: User | None = None,
    expires_at: datetime | None = None,
    scopes: Sequence[str] = (Scope.INFERENCE,),
    allowed_models: Sequence[str] = (),
    allowed_addresses: Sequence[str] = (),
    tier_ceiling: str = "",
    limits: Mapping[LimitKind, int | None] | None = None,
    created_by: User | None = None,
    by: Asker = None,
) -> IssuedKey:
    """`member`: whose key it is, and whose role bounds what it may. `by`: who asks, and gives no more than they have.

    Raises InvalidInput, NotAllowed; nothing is made then.
    """
    settings = check_settings(
        KeySettings(name, tuple(scopes), tuple(allowed_models), tuple(allowed_addresses), tier_ceiling, expires_at)
    )
    with transaction.atomic():
        hold_tenant(tenant)
        check_may_give(by, tenant, settings, member)
        check_limits_within(by, limits_of_new_key(limits))
        return _issue(tenant, settings, actor=actor, member=member, created_by=created_by or member, limits=limits)


def change_api_key(*, tenant: Tenant, key_id: str, settings: KeySettings, actor: str, by: Asker = None) -> ApiKey:
    """All its settings at once (`settings_of` has those that hold). Raises UnknownKey, InvalidInput, NotAllowed."""
    with transaction.atomic():
        hold_tenant(tenant)
        key = key_in_use(tenant, key_id)
        before = settings_of(key)
        check_may_touch(by, key)
        settings = check_settings(settings, expires_before=before.expires_at)
        check_may_give(by, tenant, settings, key.member)
        if Scope.MANAGE in set(settings.scopes) - set(before.scopes):
            raise NotAllowed(
                "a key that others may know is not made a managing one: issue a new key with that scope", param="scopes"
            )
        if settings == before:
            return key
        for name, value in asdict(settings).items():
            setattr(key, name, list(value) if isinstance(value, tuple) else value)
        key.save(update_fields=list(NARROWED_FIELDS))
        publish_key(key)
        record_audit(
            actor=actor,
            action="key.change",
            target=key.id,
            tenant=tenant,
            before=before.as_plain(),
            after=settings.as_plain(),
        )
    return key


def rotate_api_key(
    *, tenant: Tenant, key_id: str, overlap_h: int, actor: str, member: User | None = None, by: Asker = None
) -> IssuedKey:
    """A new key with the settings and limits of the old, which goes on working for `overlap_h` (0, 1, 24) hours.

    `member`: who rotates, and whose the new key is: nobody gets another's powers by it. None (an operator): as before.
    `by`: who asks, where that is not `member` but a key.
    A key with an expiry lives as long again. What the old one spends of a monthly cap counts for the new one too.
    Raises UnknownKey, InvalidInput, NotAllowed, AlreadyRotated: a key is rotated once, however many ask at once.
    """
    if overlap_h not in OVERLAPS_H:
        raise InvalidInput(f"an overlap is one of {', '.join(map(str, OVERLAPS_H))} hours", param="overlap_h")
    with transaction.atomic():
        hold_tenant(tenant)
        old, now = _not_rotated(tenant, key_id), timezone.now()
        by = by or member
        check_may_touch(by, old)
        life = old.expires_at - old.created_at if old.expires_at else None
        settings = check_settings(replace(settings_of(old), expires_at=now + life if life else None))
        rows = Limit.objects.for_tenant(tenant).filter(key=old).values_list("kind", "value")
        limits = {LimitKind(kind): value for kind, value in rows}
        check_may_give(by, tenant, settings, member or old.member)
        check_limits_within(by, limits_of_new_key(limits))
        issued = _issue(
            tenant, settings, actor=actor, member=member or old.member, created_by=member, limits=limits, replaces=old
        )
        end = now + timedelta(hours=overlap_h)
        old.rotated_at = now
        if overlap_h == 0:
            revoke_api_key(key_id=old.id, actor=actor, tenant=tenant)
        elif old.expires_at is None or old.expires_at > end:
            old.expires_at = end
            publish_key(old)
        old.save(update_fields=["expires_at", "rotated_at"])
        after = {"new_key": issued.key.id, "overlap_h": overlap_h}
        record_audit(actor=actor, action="key.rotate", target=old.id, tenant=tenant, after=after)
    return issued


def disable_api_key(*, tenant: Tenant, key_id: str, actor: str) -> ApiKey:
    """Refused until it is enabled again. Disabling twice is no error. Raises UnknownKey."""
    return _switch(tenant, key_id, actor, disabled_at=timezone.now())


def enable_api_key(*, tenant: Tenant, key_id: str, actor: str, by: Asker = None) -> ApiKey:
    """Raises UnknownKey, NotAllowed. Anybody who manages keys may stop one, but not set going what may more than they."""
    return _switch(tenant, key_id, actor, disabled_at=None, by=by)


def revoke_api_key(*, key_id: str, actor: str, tenant: Tenant | None = None) -> RevokedKey:
    """Refused by every gateway within a second, for good. Revoking twice is no error. Raises UnknownKey.

    With `tenant`: only a key of that tenant.
    """
    rows = ApiKey.unscoped.all() if tenant is None else ApiKey.objects.for_tenant(tenant)
    with transaction.atomic():
        key = rows.filter(id=key_id).select_related("tenant").first()
        if key is None:
            raise UnknownKey(f"there is no key {key_id!r}; give the id, the part after hw_live_")
        hold_tenant(key.tenant)
        changed = rows.filter(id=key_id, revoked_at=None).update(revoked_at=timezone.now())
        key.refresh_from_db(fields=["revoked_at"])
        change = control.publish(kind="key", key=key.id, payload=None)
        if changed:
            record_audit(actor=actor, action="key.revoke", target=key.id, tenant=key.tenant)
    return RevokedKey(key=key, change_id=change.id, was_revoked_already=not changed)


def hand_over_key(*, key: ApiKey, to: User, actor: str) -> None:
    """Call it inside a transaction that holds the tenant.

    The key loses the scope manage: whoever knows it would have the new member's powers.
    """
    before = {"member": str(key.member), "scopes": key.scopes}
    key.member, key.scopes = to, [scope for scope in key.scopes if scope != Scope.MANAGE]
    key.save(update_fields=["member", "scopes"])
    publish_key(key)
    after = {"member": str(to), "scopes": key.scopes}
    record_audit(actor=actor, action="key.hand_over", target=key.id, tenant=key.tenant, before=before, after=after)


def key_in_use(tenant: Tenant, key_id: str) -> ApiKey:
    """Of this tenant, not revoked. Raises UnknownKey."""
    rows = ApiKey.objects.for_tenant(tenant).select_related("tenant", "member")
    key: ApiKey | None = rows.filter(id=key_id, revoked_at=None).first()
    if key is None:
        raise UnknownKey(f"{tenant.name} has no key {key_id!r} in use; give the id, the part after hw_live_")
    return key


def _not_rotated(tenant: Tenant, key_id: str) -> ApiKey:
    rows = ApiKey.objects.for_tenant(tenant).filter(id=key_id).exclude(rotated_at=None)
    if rows.exists():
        raise AlreadyRotated(f"the key {key_id!r} has been rotated already: use or rotate the one that took its place")
    return key_in_use(tenant, key_id)


def publish_key(key: ApiKey) -> None:
    control.publish(
        kind="key",
        key=key.id,
        payload={
            "tenant_id": str(key.tenant_id),
            "member_id": key.member_id,
            "secret_sha256": key.secret_sha256,
            "expires_at": key.expires_at.timestamp() if key.expires_at else None,
            "scopes": key.scopes,
            "models": key.allowed_models,
            "addresses": key.allowed_addresses,
            "tier_ceiling": key.tier_ceiling,
            "is_disabled": key.disabled_at is not None,
        },
    )


def _issue(
    tenant: Tenant,
    settings: KeySettings,
    *,
    actor: str,
    member: User | None,
    created_by: User | None,
    limits: Mapping[LimitKind, int | None] | None,
    replaces: ApiKey | None = None,
) -> IssuedKey:
    if ApiKey.objects.for_tenant(tenant).filter(revoked_at=None).count() >= MAX_KEYS:
        raise Conflict(f"{tenant.name} has {MAX_KEYS} keys: revoke some first")
    made = new_key()
    values: dict[str, Any] = {
        name: list(value) if isinstance(value, tuple) else value for name, value in asdict(settings).items()
    }
    key = ApiKey.unscoped.create(
        id=made.id,
        tenant=tenant,
        member=member,
        created_by=created_by,
        secret_sha256=made.secret_sha256,
        replaces=replaces,
        **values,
    )
    publish_key(key)
    record_audit(actor=actor, action="key.issue", target=key.id, tenant=tenant, after=settings.as_plain())
    if limits:
        set_limits(tenant=tenant, limits=limits, key_id=key.id, actor=actor, is_self_service=True)
    return IssuedKey(key=key, text=made.text)


def _switch(tenant: Tenant, key_id: str, actor: str, *, disabled_at: datetime | None, by: Asker = None) -> ApiKey:
    with transaction.atomic():
        hold_tenant(tenant)
        key = key_in_use(tenant, key_id)
        check_may_touch(by, key)
        if (key.disabled_at is None) != (disabled_at is None):
            key.disabled_at = disabled_at
            key.save(update_fields=["disabled_at"])
            publish_key(key)
            action = "key.enable" if disabled_at is None else "key.disable"
            record_audit(actor=actor, action=action, target=key.id, tenant=tenant)
    return key
