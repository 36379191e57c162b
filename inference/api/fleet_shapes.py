"""What the operators' part of the API takes and gives about zones, nodes and replicas."""

from rest_framework import serializers as s


class LoadShape(s.Serializer):
    running = s.IntegerField()
    waiting = s.IntegerField()
    kv_used_ratio = s.FloatField()
    tokens_per_s = s.FloatField()
    prefix_hit_ratio = s.FloatField(allow_null=True, help_text="of tokens of prompts since its start")
    accepted_ratio = s.FloatField(allow_null=True, help_text="of tokens drafted by speculative decoding since its start")
    at = s.DateTimeField()


class ReplicaShape(s.Serializer):
    id = s.CharField()
    model = s.CharField()
    version = s.CharField()
    state = s.CharField()
    reason = s.CharField()
    since = s.DateTimeField()
    epoch = s.IntegerField(help_text="how often its engine was started")
    is_wanted = s.BooleanField()
    is_standby = s.BooleanField()
    replaced_by = s.CharField(help_text="who comes in its place; empty: nobody")
    load = LoadShape(allow_null=True)


class NodeShape(s.Serializer):
    name = s.CharField()
    machine_kind = s.CharField()
    max_replicas = s.IntegerField(help_text="0: no bound is known")
    is_cordoned = s.BooleanField()
    is_alive = s.BooleanField()
    lost_at = s.DateTimeField(allow_null=True)
    seen_at = s.DateTimeField(allow_null=True)
    replicas = ReplicaShape(many=True)


class ZoneShape(s.Serializer):
    name = s.CharField(help_text="empty: of nodes without one")
    nodes = NodeShape(many=True)


class DrainShape(s.Serializer):
    id = s.IntegerField()
    zone = s.CharField()
    by = s.CharField()
    is_forced = s.BooleanField()
    started_at = s.DateTimeField()
    ended_at = s.DateTimeField(allow_null=True)
    verdict = s.CharField(help_text="running, clean, failed, timed out or cancelled")
    reason = s.CharField()
    nodes = s.ListField(child=s.CharField())
    replicas = s.ListField(child=s.CharField())
    before = s.DictField(help_text="ready replicas by model, here and elsewhere; how many need a place, and the room there is")
    after = s.DictField()
    streams_in_flight = s.IntegerField(help_text="at its engines when it began")
    ends = s.DictField(child=s.IntegerField(), help_text="requests its replicas took part in, by end state")
    moved = s.IntegerField(help_text="of them, those that went on elsewhere")
    failed = s.IntegerField()


class NewDrain(s.Serializer):
    zone = s.CharField(max_length=64)
    force = s.BooleanField(default=False, help_text="let go what finds no place elsewhere")


class ZoneNamed(s.Serializer):
    zone = s.CharField(max_length=64)


class CordonAsked(s.Serializer):
    node = s.CharField(max_length=100)
    is_cordoned = s.BooleanField()


class MoveAsked(s.Serializer):
    replica = s.CharField(max_length=32)
    kind = s.ChoiceField(("drain", "restart"), help_text="to another node, or a new engine wherever there is room")


class MoveShape(s.Serializer):
    replica = s.CharField()
    replaced_by = s.CharField()
    is_gapless = s.BooleanField(help_text="the old one serves until the new one does")
