"""Issue and revoke API keys."""

from dataclasses import dataclass, field
from datetime import datetime

from django.db import transaction
from django.utils import timezone

from headway.errors import InvalidInput
from inference.services import control
from tenants.errors import UnknownKey
from tenants.models import ApiKey, Tenant, User
from tenants.services.audit import record_audit
from tenants.services.key_format import new_key


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
    *, tenant: Tenant, name: str, actor: str, member: User | None = None, expires_at: datetime | None = None
) -> IssuedKey:
    """Raises InvalidInput for an empty or overlong name or an expiry in the past."""
    name = name.strip()
    if not 1 <= len(name) <= 100:
        raise InvalidInput("a key's name has 1 to 100 characters", param="name")
    if expires_at is not None and expires_at <= timezone.now():
        raise InvalidInput("a key's expiry must lie in the future", param="expires_at")
    made = new_key()
    with transaction.atomic():
        key = ApiKey.unscoped.create(
            id=made.id, tenant=tenant, member=member, name=name, secret_sha256=made.secret_sha256, expires_at=expires_at
        )
        _publish(key)
        record_audit(actor=actor, action="key.issue", target=key.id, tenant=tenant, after={"name": name})
    return IssuedKey(key=key, text=made.text)


def revoke_api_key(*, key_id: str, actor: str) -> RevokedKey:
    """Refused by every gateway within a second. Revoking twice is no error. Raises UnknownKey."""
    with transaction.atomic():
        changed = ApiKey.unscoped.filter(id=key_id, revoked_at=None).update(revoked_at=timezone.now())
        key = ApiKey.unscoped.filter(id=key_id).select_related("tenant").first()
        if key is None:
            raise UnknownKey(f"there is no key {key_id!r}; give the id, the part after hw_live_")
        change = control.publish(kind="key", key=key.id, payload=None)
        if changed:
            record_audit(actor=actor, action="key.revoke", target=key.id, tenant=key.tenant)
    return RevokedKey(key=key, change_id=change.id, was_revoked_already=not changed)


def _publish(key: ApiKey) -> None:
    control.publish(
        kind="key",
        key=key.id,
        payload={
            "tenant_id": str(key.tenant_id),
            "member_id": key.member_id,
            "secret_sha256": key.secret_sha256,
            "expires_at": key.expires_at.timestamp() if key.expires_at else None,
        },
    )
