"""What the API takes and gives of releases, versions and pins. Shares are in millionths, times in seconds."""

from rest_framework import serializers as s

from inference.policy.rollout import PPM
from inference.rollout_models import RolloutState
from inference.services.rollouts.operating import DEFAULT_WINDOW_S
from inference.services.rollouts.plans import MAX_S, MAX_SAMPLES, MAX_SHADOW_MICROS, MAX_STEPS

LABEL = "such as v2"


class RolloutsAsked(s.Serializer):
    model = s.CharField(required=False, max_length=200)
    state = s.ChoiceField(["open", "ended"], required=False)


class StepShape(s.Serializer):
    share_ppm = s.IntegerField(min_value=1, max_value=PPM - 1)
    min_duration_s = s.IntegerField(min_value=0, max_value=MAX_S)
    min_samples = s.IntegerField(min_value=0, max_value=MAX_SAMPLES, help_text="requests of the candidate")


class MirrorShape(s.Serializer):
    share_ppm = s.IntegerField(min_value=1, max_value=PPM)
    min_duration_s = s.IntegerField(min_value=0, max_value=MAX_S)
    min_samples = s.IntegerField(min_value=0, max_value=MAX_SAMPLES)
    max_usd_micros = s.IntegerField(min_value=1, max_value=MAX_SHADOW_MICROS, help_text="what mirrored requests may cost")


class ScheduleShape(s.Serializer):
    steps = StepShape(many=True, min_length=1, max_length=MAX_STEPS)
    shadow = MirrorShape(required=False, allow_null=True, default=None)


class NewRollout(s.Serializer):
    model = s.CharField(max_length=200)
    to = s.CharField(max_length=11, help_text=f"the version that is to be stable, {LABEL}")
    schedule = ScheduleShape(
        required=False, allow_null=True, default=None, help_text="left out: 1, 5, 25, 50 %, 5 minutes each"
    )
    gates = s.DictField(child=s.FloatField(allow_null=True), required=False, default=dict, help_text="null: off")
    window_s = s.IntegerField(min_value=0, max_value=MAX_S, required=False, default=DEFAULT_WINDOW_S)
    kept_warm = s.IntegerField(min_value=0, max_value=1000, required=False, allow_null=True, default=None)
    scheduled_for = s.DateTimeField(required=False, allow_null=True, default=None)


class RolloutShape(s.Serializer):
    id = s.IntegerField()
    model = s.CharField()
    state = s.ChoiceField(RolloutState.choices)
    reason = s.CharField(allow_blank=True)
    since = s.CharField()
    paused_from = s.CharField(allow_null=True)
    step = s.IntegerField()
    share_ppm = s.IntegerField(help_text="asked")
    share_seen = s.DictField(allow_null=True, help_text="share, low, high, requests")
    schedule = s.DictField()
    gates = s.DictField()
    findings = s.ListField(child=s.DictField(), help_text="what each gate says now")
    window_s = s.IntegerField()
    kept_warm = s.IntegerField(allow_null=True)
    scheduled_for = s.CharField(allow_null=True)
    started_at = s.CharField(allow_null=True)
    breached_at = s.CharField(allow_null=True)
    promoted_at = s.CharField(allow_null=True)
    ended_at = s.CharField(allow_null=True)
    created_by = s.CharField()
    approved_by = s.CharField(allow_null=True, help_text="beside its maker, where two persons are asked for")
    approved_at = s.CharField(allow_null=True)
    may = s.DictField(child=s.BooleanField())

    def get_fields(self) -> dict[str, s.Field]:
        """`from` is a word of Python's."""
        return {"from": s.CharField(), "to": s.CharField(), **super().get_fields()}


class EventShape(s.Serializer):
    at = s.CharField()
    kind = s.CharField()
    to = s.CharField(allow_blank=True)
    actor = s.CharField()
    reason = s.CharField(allow_blank=True)
    evidence = s.DictField(allow_null=True)


class RolloutReason(s.Serializer):
    reason = s.CharField(max_length=500, required=False, default="", allow_blank=True)


class Target(RolloutReason):
    version = s.CharField(max_length=11, help_text=f"the one that is to serve then, {LABEL}: what does not match is refused")


class VersionShape(s.Serializer):
    version = s.CharField(source="label")
    stage = s.CharField()
    replicas = s.IntegerField()
    ready = s.IntegerField()
    pins = s.IntegerField(help_text="tenants that stay on it")
    weights = s.CharField(source="version.weights_uri")
    digest = s.CharField(source="version.weights_digest", allow_blank=True)
    engine_environment = s.CharField(source="version.engine_environment")
    engine_args = s.ListField(source="version.engine_args", child=s.CharField())
    dtype = s.CharField(source="version.dtype")
    created_at = s.DateTimeField(source="version.created_at")
    created_by = s.CharField(source="version.created_by", allow_blank=True)
    retires_at = s.DateTimeField(source="version.retires_at", allow_null=True)
    retired_at = s.DateTimeField(source="version.retired_at", allow_null=True)


class VersionsAsked(s.Serializer):
    model = s.CharField(max_length=200)


class Retirement(s.Serializer):
    model = s.CharField(max_length=200)
    version = s.CharField(max_length=11, help_text=LABEL)
    retires_at = s.DateTimeField(allow_null=True, help_text="null takes it back")


class PinShape(s.Serializer):
    model = s.CharField()
    stable = s.CharField()
    pinned = s.CharField(allow_blank=True, help_text="a blank: it goes with the stable version")
    is_in_force = s.BooleanField(help_text="a replica of that version serves")
    retires_at = s.DateTimeField(allow_null=True)
    choices = s.ListField(child=s.CharField())


class NewPin(s.Serializer):
    model = s.CharField(max_length=200)
    version = s.CharField(max_length=11, allow_null=True, help_text=f"{LABEL}; null: with the stable version again")
