"""Tenants, their plans, limits, members and API keys, and the audit log."""

import secrets
import uuid
from typing import Any, ClassVar

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.db.models.functions import Lower

from tenants.alert_models import AlertMail
from tenants.errors import AuditIsAppendOnly
from tenants.owned import TenantOwnedManager
from tenants.visit_models import OperatorVisit
from tenants.webhook_models import EventType, WebhookDelivery, WebhookEndpoint, WebhookEvent

__all__ = [
    "AlertMail",
    "ApiKey",
    "AuditEntry",
    "EventType",
    "Invitation",
    "Limit",
    "LimitKind",
    "Membership",
    "OperatorVisit",
    "Plan",
    "Tenant",
    "Tier",
    "User",
    "WebhookDelivery",
    "WebhookEndpoint",
    "WebhookEvent",
]


class User(AbstractUser):
    """A person who can log in. A member of tenants through Membership. `username` is made up, but for an operator's."""

    def __str__(self) -> str:
        return self.email or self.username


def new_cache_salt() -> str:
    return secrets.token_hex(16)


class LimitKind(models.TextChoices):
    """The words of inference/policy/decisions.py, where what they mean is kept."""

    REQUESTS = "requests_per_minute"
    INPUT_TOKENS = "input_tokens_per_minute"
    OUTPUT_TOKENS = "output_tokens_per_minute"
    CONCURRENCY = "concurrent_requests"
    BUDGET = "monthly_budget"  # micro-dollars


class Tier(models.TextChoices):
    """Most urgent first."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"


class Plan(models.Model):
    """What a tenant may do by default; null: no such limit. A limit of the tenant's own takes the place of the plan's."""

    name = models.SlugField(max_length=63, unique=True)
    weight = models.FloatField(default=1.0, help_text="its share of a busy pool, against other tenants of the tier")
    tier_ceiling = models.CharField(max_length=16, choices=Tier.choices, default=Tier.INTERACTIVE)
    requests_per_minute = models.BigIntegerField(null=True, blank=True)
    input_tokens_per_minute = models.BigIntegerField(null=True, blank=True)
    output_tokens_per_minute = models.BigIntegerField(null=True, blank=True)
    concurrent_requests = models.BigIntegerField(null=True, blank=True)
    monthly_budget_micros = models.BigIntegerField(null=True, blank=True)
    default_max_tokens = models.PositiveIntegerField(
        null=True, blank=True, help_text="for requests that name none; null: the room that is left"
    )
    discount_percent = models.PositiveSmallIntegerField(default=0, help_text="off the list price of every token")
    salt_per_key = models.BooleanField(
        default=False, help_text="prefix caches are shared within one key, not within the tenant"
    )
    is_prepaid = models.BooleanField(default=False, help_text="its tenants spend what their balance has, and no more")
    is_self_service = models.BooleanField(default=False, help_text="a tenant may choose it by itself")

    class Meta:
        constraints = (
            models.CheckConstraint(condition=models.Q(discount_percent__lte=100), name="a_discount_is_at_most_everything"),
        )

    def __str__(self) -> str:
        return self.name

    def default_limits(self) -> dict[LimitKind, int]:
        values = {
            LimitKind.REQUESTS: self.requests_per_minute,
            LimitKind.INPUT_TOKENS: self.input_tokens_per_minute,
            LimitKind.OUTPUT_TOKENS: self.output_tokens_per_minute,
            LimitKind.CONCURRENCY: self.concurrent_requests,
            LimitKind.BUDGET: self.monthly_budget_micros,
        }
        return {kind: value for kind, value in values.items() if value is not None}


class Tenant(models.Model):
    """A customer. Pages may say "organisation"."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.SlugField(max_length=63, unique=True)
    cache_salt = models.CharField(max_length=32, default=new_cache_salt, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    suspended_at = models.DateTimeField(null=True, blank=True)
    plan = models.ForeignKey(
        Plan, null=True, blank=True, on_delete=models.PROTECT, related_name="+", help_text="null: the plan named default"
    )
    time_zone = models.CharField(max_length=64, default="UTC", help_text="whose calendar months budgets are counted by")
    is_operator = models.BooleanField(default=False, help_text="our own account: it may ask for candidates by name")
    no_shadow = models.BooleanField(default=False, help_text="none of its requests is mirrored to a version that is tried out")

    class Meta:
        constraints = (
            models.UniqueConstraint(Lower("name"), name="tenants_names_differ_by_more_than_case"),
            models.UniqueConstraint(fields=("is_operator",), condition=models.Q(is_operator=True), name="one_operator_account"),
        )

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    class Role(models.TextChoices):
        OWNER = "owner"
        ADMIN = "admin"
        DEVELOPER = "developer"
        BILLING = "billing"
        VIEWER = "viewer"

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    role = models.CharField(max_length=16, choices=Role.choices)
    created_at = models.DateTimeField(auto_now_add=True)

    unscoped: ClassVar[models.Manager[Any]] = models.Manager()
    objects = TenantOwnedManager()

    class Meta:
        constraints = (models.UniqueConstraint(fields=("tenant", "user"), name="one_membership_per_tenant_and_user"),)

    def __str__(self) -> str:
        return f"{self.user} in {self.tenant} as {self.role}"


class Invitation(models.Model):
    """A person asked to join, by e-mail. Only the hash of what the mail's link carries is kept."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    email = models.EmailField()
    role = models.CharField(max_length=16, choices=Membership.Role.choices)
    token_sha256 = models.CharField(max_length=64, unique=True, editable=False)
    invited_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    sent_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)
    accepted_at = models.DateTimeField(null=True, blank=True)
    accepted_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")

    unscoped: ClassVar[models.Manager[Any]] = models.Manager()
    objects = TenantOwnedManager()

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("tenant", "email"),
                condition=models.Q(revoked_at=None, accepted_at=None),
                name="one_open_invitation_per_tenant_and_email",
            ),
        )

    def __str__(self) -> str:
        return f"{self.email} to {self.tenant_id} as {self.role}"


def inference_only() -> list[str]:
    return ["inference"]


class ApiKey(models.Model):
    """`hw_live_<id>_<secret>_<check>`; only the secret's SHA-256 is kept."""

    id = models.CharField(primary_key=True, max_length=16, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    member = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    name = models.CharField(max_length=100)
    secret_sha256 = models.CharField(max_length=64, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    disabled_at = models.DateTimeField(null=True, blank=True)
    rotated_at = models.DateTimeField(null=True, blank=True, help_text="another took its place; it may go on for a while")
    created_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    scopes = models.JSONField(default=inference_only, help_text="of tenants.access.Scope")
    allowed_models = models.JSONField(default=list, blank=True, help_text="public ids; empty: all")
    allowed_addresses = models.JSONField(default=list, blank=True, help_text="CIDR; empty: from anywhere")
    tier_ceiling = models.CharField(max_length=16, choices=Tier.choices, blank=True, help_text="blank: the plan's")
    last_used_at = models.DateTimeField(null=True, blank=True, help_text="swept from usage records, up to a minute late")
    replaces = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="+")

    unscoped: ClassVar[models.Manager[Any]] = models.Manager()
    objects = TenantOwnedManager()

    def __str__(self) -> str:
        return f"{self.id} ({self.name})"


class Limit(models.Model):
    """One limit of a tenant as a whole, of one of its keys, or of one model as it uses it."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    key = models.ForeignKey(ApiKey, null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    model = models.CharField(max_length=200, blank=True, help_text="public id; blank: all models")
    kind = models.CharField(max_length=32, choices=LimitKind.choices)
    value = models.BigIntegerField()
    is_self_set = models.BooleanField(
        default=False, help_text="by the tenant itself, which may change it; never above what its plan gives"
    )

    unscoped: ClassVar[models.Manager[Any]] = models.Manager()
    objects = TenantOwnedManager()

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("tenant", "model", "kind"),
                condition=models.Q(key=None),
                name="one_limit_of_a_kind_per_tenant_and_model",
            ),
            models.UniqueConstraint(
                fields=("key", "kind"), condition=models.Q(key__isnull=False), name="one_limit_of_a_kind_per_key"
            ),
            models.CheckConstraint(condition=models.Q(key=None) | models.Q(model=""), name="a_limit_is_of_a_key_or_a_model"),
            models.CheckConstraint(condition=models.Q(value__gt=0), name="a_limit_allows_something"),
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.value} of {self.key_id or self.model or self.tenant_id}"


class AppendOnlyQuerySet(models.QuerySet[Any]):
    """Nothing that is written is changed or taken away."""

    def update(self, **_values: Any) -> int:
        raise AuditIsAppendOnly("audit entries are never changed")

    def delete(self) -> tuple[int, dict[str, int]]:
        raise AuditIsAppendOnly("audit entries are never deleted")

    def bulk_update(self, *_args: Any, **_kwargs: Any) -> int:
        raise AuditIsAppendOnly("audit entries are never changed")


class AuditEntry(models.Model):
    """Who did what to what, from where. Append-only."""

    at = models.DateTimeField(auto_now_add=True)
    actor = models.CharField(max_length=200)
    action = models.CharField(max_length=64)
    target = models.CharField(max_length=200)
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.SET_NULL, related_name="+")
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    address = models.CharField(max_length=64, blank=True, help_text="of the client; blank: a command of an operator")
    request_id = models.CharField(max_length=40, blank=True)

    objects = AppendOnlyQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "audit entries"
        indexes = (models.Index(fields=("tenant", "-id"), name="audit_by_tenant"),)

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M:%S} {self.actor} {self.action} {self.target}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise AuditIsAppendOnly("audit entries are never changed")
        super().save(*args, **kwargs)

    def delete(self, *_args: Any, **_kwargs: Any) -> tuple[int, dict[str, int]]:
        raise AuditIsAppendOnly("audit entries are never deleted")
