"""What the operators' part of the API takes and gives about pools."""

from rest_framework import serializers as s

S = "seconds"


class PoolChange(s.Serializer):
    """What is left out stays as it is."""

    is_autoscaled = s.BooleanField(required=False)
    min_replicas = s.IntegerField(required=False)
    max_replicas = s.IntegerField(required=False)
    warm_replicas = s.IntegerField(required=False)
    idle_before_zero_s = s.IntegerField(required=False, help_text=f"{S} without a request before a pool whose least is 0 goes")
    hold_limit_s = s.IntegerField(required=False, help_text=f"{S} a request waits for a pool at zero")


class PoolShape(s.Serializer):
    id = s.IntegerField()
    model = s.CharField()
    stable = s.CharField(help_text="the version that serves; empty: external replicas alone")
    wanted = s.IntegerField(help_text="in rotation, of all versions")
    ready = s.IntegerField()
    warm = s.IntegerField()
    starting = s.IntegerField()
    draining = s.IntegerField()
    failed = s.IntegerField()
    is_autoscaled = s.BooleanField(source="pool.is_autoscaled")
    min_replicas = s.IntegerField(source="pool.min_replicas")
    max_replicas = s.IntegerField(source="pool.max_replicas")
    warm_replicas = s.IntegerField(source="pool.warm_replicas")
    idle_before_zero_s = s.IntegerField(source="pool.idle_before_zero_s")
    hold_limit_s = s.IntegerField(source="pool.hold_limit_s")
    woken_at = s.DateTimeField(allow_null=True, help_text="since when a request waits for it to wake")


class DecisionsAsked(s.Serializer):
    pool = s.IntegerField(required=False, min_value=1, max_value=2**31 - 1)


class DecisionShape(s.Serializer):
    id = s.IntegerField()
    at = s.DateTimeField()
    model = s.CharField(source="pool.model.public_id")
    before = s.IntegerField()
    desired = s.IntegerField()
    reason = s.CharField()
    evidence = s.JSONField()
    problem = s.CharField(help_text="why it could not be carried out whole; empty: it was")
    decided_by = s.CharField()
