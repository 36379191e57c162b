"""What the API takes and gives, as serializers: they check bodies and make the OpenAPI document."""

from typing import Any

from rest_framework import serializers as s

from tenants.access import Scope
from tenants.models import EventType, LimitKind, Membership, Tier
from tenants.services.terms import MAX_LIMIT
from tenants.services.webhooks import SUBSCRIBED

ROLES = Membership.Role.values
NAME = r"^[-a-zA-Z0-9_]+\Z"


class TenantShape(s.Serializer):
    id = s.UUIDField()
    name = s.CharField()
    plan = s.CharField()
    time_zone = s.CharField()
    created_at = s.DateTimeField()
    is_suspended = s.BooleanField()
    is_mirroring_allowed = s.BooleanField(help_text="may some requests be answered by a version that is tried out, too?")
    role = s.CharField(allow_null=True, help_text="yours; null for a key")
    actions = s.ListField(child=s.CharField(), help_text="what you may do here")


class NewTenant(s.Serializer):
    name = s.RegexField(NAME, max_length=63)


class TenantChange(s.Serializer):
    time_zone = s.CharField(max_length=64, required=False)
    is_mirroring_allowed = s.BooleanField(required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not attrs:
            raise s.ValidationError("name what is to be changed: time_zone, is_mirroring_allowed")
        return attrs


class AlertMailsShape(s.Serializer):
    roles = s.DictField(
        child=s.ListField(child=s.ChoiceField(ROLES)), allow_empty=False, help_text='by kind of event, such as "budget.reached"'
    )


class PersonShape(s.Serializer):
    id = s.IntegerField()
    name = s.CharField(source="__str__")
    email = s.CharField()


class MemberShape(s.Serializer):
    user = PersonShape()
    role = s.CharField()
    created_at = s.DateTimeField()
    last_log_in_at = s.DateTimeField(source="user.last_login", allow_null=True)


class RoleChange(s.Serializer):
    role = s.ChoiceField(ROLES)


class Removal(s.Serializer):
    """What becomes of the member's keys: revoked, unless they are handed to another member."""

    hand_keys_to = s.IntegerField(required=False, min_value=1, max_value=2**53, help_text="id of a member who manages keys")


class Transfer(s.Serializer):
    to = s.IntegerField(min_value=1, max_value=2**53, help_text="id of the member who becomes owner; you become an admin")


class InvitationShape(s.Serializer):
    id = s.UUIDField()
    email = s.CharField()
    role = s.CharField()
    state = s.ChoiceField(["pending", "expired", "revoked", "accepted"])
    invited_by = s.CharField(allow_null=True)
    created_at = s.DateTimeField()
    sent_at = s.DateTimeField()
    expires_at = s.DateTimeField()


class Acceptance(s.Serializer):
    token = s.CharField(max_length=200, help_text="the part of the mailed link between /invitations/ and the last slash")


class JoinedShape(s.Serializer):
    tenant = s.CharField(help_text="its name, as in paths")
    role = s.ChoiceField(ROLES)


class NewInvitation(s.Serializer):
    email = s.EmailField(max_length=254)
    role = s.ChoiceField(ROLES)


def limits_field(**options: Any) -> s.DictField:
    return s.DictField(
        child=s.IntegerField(min_value=1, max_value=MAX_LIMIT, allow_null=True),
        help_text=f"by kind ({', '.join(LimitKind.values)}, in micro-dollars); null: none",
        **options,
    )


class KeyFields(s.Serializer):
    name = s.CharField(max_length=100)
    scopes = s.ListField(child=s.ChoiceField([scope.value for scope in Scope]), required=False, min_length=1)
    allowed_models = s.ListField(child=s.CharField(max_length=200), required=False, max_length=100)
    allowed_addresses = s.ListField(child=s.CharField(max_length=64), required=False, max_length=100)
    tier_ceiling = s.ChoiceField(["", *Tier.values], required=False)
    expires_at = s.DateTimeField(required=False, allow_null=True)


class NewKey(KeyFields):
    limits = limits_field(required=False)


class KeyShape(s.Serializer):
    id = s.CharField()
    prefix = s.CharField(help_text="what the key begins with")
    name = s.CharField()
    state = s.ChoiceField(["active", "disabled", "expired", "revoked"])
    scopes = s.ListField(child=s.CharField())
    allowed_models = s.ListField(child=s.CharField())
    allowed_addresses = s.ListField(child=s.CharField())
    tier_ceiling = s.CharField(allow_blank=True)
    limits = limits_field()
    member = PersonShape(allow_null=True)
    created_by = PersonShape(allow_null=True)
    replaces = s.CharField(allow_null=True, source="replaces_id")
    created_at = s.DateTimeField()
    expires_at = s.DateTimeField(allow_null=True)
    last_used_at = s.DateTimeField(allow_null=True)


class IssuedKeyShape(KeyShape):
    key = s.CharField(help_text="the whole key: shown now, and never again")


class Rotation(s.Serializer):
    overlap_h = s.ChoiceField([0, 1, 24], help_text="hours for which the old key goes on working")


class PlanShape(s.Serializer):
    name = s.CharField()
    is_current = s.BooleanField()
    is_self_service = s.BooleanField()
    weight = s.FloatField()
    tier_ceiling = s.CharField()
    default_max_tokens = s.IntegerField(allow_null=True)
    discount_percent = s.IntegerField()
    salt_per_key = s.BooleanField()
    is_prepaid = s.BooleanField(help_text="its tenants spend what their balance has, and no more")
    limits = limits_field()


class PlansShape(s.Serializer):
    results = PlanShape(many=True)


class PlanChangeShape(s.Serializer):
    field = s.CharField()
    before = s.JSONField()
    after = s.JSONField()


class PlanPreviewShape(s.Serializer):
    plan = s.CharField()
    changes = PlanChangeShape(many=True)


class PlanChoice(s.Serializer):
    plan = s.RegexField(NAME, max_length=63)


class LimitShape(s.Serializer):
    scope = s.ChoiceField(["tenant", "key", "model"])
    id = s.CharField(help_text="of the key or model; of the tenant itself its id")
    kind = s.ChoiceField(LimitKind.values)
    value = s.IntegerField()
    is_from_plan = s.BooleanField()
    is_self_set = s.BooleanField(help_text="you may change it")


class LimitsShape(s.Serializer):
    plan = s.CharField()
    time_zone = s.CharField(help_text="whose calendar months budgets are counted by")
    limits = LimitShape(many=True)


class LimitsChange(s.Serializer):
    limits = limits_field()
    key = s.CharField(required=False, max_length=16)
    model = s.CharField(required=False, max_length=200)


class AuditShape(s.Serializer):
    id = s.IntegerField()
    at = s.DateTimeField()
    actor = s.CharField()
    action = s.CharField()
    target = s.CharField()
    before = s.JSONField()
    after = s.JSONField()
    address = s.CharField(allow_blank=True)
    request_id = s.CharField(allow_blank=True)


class WebhookFields(s.Serializer):
    url = s.CharField(max_length=500)
    events = s.ListField(child=s.ChoiceField([event.value for event in SUBSCRIBED]), min_length=1)


class WebhookChange(WebhookFields):
    is_enabled = s.BooleanField(required=False)


class WebhookShape(s.Serializer):
    id = s.UUIDField()
    url = s.CharField()
    events = s.ListField(child=s.CharField())
    is_enabled = s.BooleanField()
    created_at = s.DateTimeField()


class NewWebhookShape(WebhookShape):
    secret = s.CharField(help_text="signs what is sent: shown now, and never again")


class DeliveryShape(s.Serializer):
    id = s.UUIDField()
    event = s.UUIDField(source="event_id")
    type = s.ChoiceField(EventType.values, source="event.type")
    endpoint = s.UUIDField(source="endpoint_id")
    url = s.CharField(source="endpoint.url")
    state = s.ChoiceField(["pending", "delivered", "failed"])
    attempts = s.IntegerField()
    last_status = s.IntegerField(allow_null=True)
    last_error = s.CharField(allow_blank=True)
    data = s.JSONField(source="event.data")
    created_at = s.DateTimeField()
    last_attempt_at = s.DateTimeField(allow_null=True)
    delivered_at = s.DateTimeField(allow_null=True)
