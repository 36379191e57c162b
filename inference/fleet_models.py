"""What is known of nodes beside their heartbeat: what their engines do now, their logs on request, zones being drained."""

from django.db import models


class ReplicaLoad(models.Model):
    """What one engine did a moment ago, as its agent saw it; overwritten with every heartbeat."""

    replica = models.CharField(primary_key=True, max_length=32)
    epoch = models.PositiveIntegerField()
    running = models.PositiveIntegerField(default=0)
    waiting = models.PositiveIntegerField(default=0)
    kv_used_ratio = models.FloatField(default=0.0)
    tokens_per_s = models.FloatField(default=0.0, help_text="made since the heartbeat before")
    # Of all tokens of prompts since its start, those found in the prefix cache; null: none was looked for.
    prefix_hit_ratio = models.FloatField(null=True)
    # Of all tokens drafted by speculative decoding, those kept; null: nothing was drafted.
    accepted_ratio = models.FloatField(null=True)
    at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.replica}: {self.running} running"


class LogTail(models.Model):
    """The last lines of one engine's log, asked for by an operator and told by its node's agent."""

    replica = models.CharField(primary_key=True, max_length=32)
    node = models.CharField(max_length=100, db_index=True)
    asked_at = models.DateTimeField(null=True, help_text="null: told")
    told_at = models.DateTimeField(null=True)
    text = models.TextField(blank=True)

    def __str__(self) -> str:
        return f"log of {self.replica}"


class NodeWatch(models.Model):
    """Since when somebody has looked at heartbeats without a gap: one row.

    After a gap (the database was away, nobody looked) every heartbeat is old, and no node is lost for that.
    """

    id = models.PositiveSmallIntegerField(primary_key=True)
    since = models.DateTimeField()
    looked_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"since {self.since}"


class ZoneDrain(models.Model):
    """One emptying of a zone, and the proof of what it did to streams."""

    class Verdict(models.TextChoices):
        RUNNING = "running"
        CLEAN = "clean"
        FAILED = "failed"
        TIMED_OUT = "timed out"
        CANCELLED = "cancelled"

    zone = models.CharField(max_length=64)
    by = models.CharField(max_length=200)
    is_forced = models.BooleanField(default=False)
    started_at = models.DateTimeField()
    emptied_at = models.DateTimeField(null=True, help_text="its last replica had stopped")
    ended_at = models.DateTimeField(null=True)
    limit_s = models.PositiveIntegerField(help_text="beyond it, it has failed")
    verdict = models.CharField(max_length=16, choices=Verdict.choices, default=Verdict.RUNNING)
    reason = models.CharField(max_length=1000, blank=True)
    nodes = models.JSONField(default=list)
    replicas = models.JSONField(default=list, help_text="ids of those that were there")
    # {"zone": ready replicas there, "elsewhere": ready ones elsewhere, "room": null: no bound} by model, and the room.
    before = models.JSONField(default=dict)
    after = models.JSONField(default=dict)
    streams_in_flight = models.PositiveIntegerField(default=0, help_text="at the engines when it began")
    # Of requests that a replica of the zone took part in and that ended meanwhile: by end state.
    ends = models.JSONField(default=dict)
    moved = models.PositiveIntegerField(default=0, help_text="requests that went on at another replica")
    failed = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("zone",), condition=models.Q(ended_at=None), name="one_drain_of_a_zone_at_a_time"),
        )

    def __str__(self) -> str:
        return f"{self.zone}: {self.verdict}"


class CertificateRevocations(models.Model):
    """A list of certificates that are good no more, signed by our authority (headway/revocation.py). The newest counts."""

    number = models.PositiveBigIntegerField(primary_key=True)
    pem = models.TextField()
    made_at = models.DateTimeField()
    made_by = models.CharField(max_length=200)

    def __str__(self) -> str:
        return f"revocations {self.number}"


class RollingRestart(models.Model):
    """New engines in the place of all replicas of a model, one after the other (services/restarts.py)."""

    class Verdict(models.TextChoices):
        RUNNING = "running"
        DONE = "done"
        FAILED = "failed"
        CANCELLED = "cancelled"

    pool = models.ForeignKey("inference.Pool", on_delete=models.CASCADE, related_name="restarts")
    by = models.CharField(max_length=200)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    verdict = models.CharField(max_length=16, choices=Verdict.choices, default=Verdict.RUNNING)
    reason = models.CharField(max_length=1000, blank=True, help_text="what it waits for, or why it ended")
    # Ids of replicas.
    waiting = models.JSONField(default=list)
    done = models.JSONField(default=list)
    replica = models.CharField(max_length=32, blank=True, help_text="the one under way")
    replaced_by = models.CharField(max_length=32, blank=True, help_text="who comes in its place")

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("pool",), condition=models.Q(ended_at=None), name="one_restart_of_a_pool_at_a_time"
            ),
        )

    def __str__(self) -> str:
        return f"{self.pool}: {self.verdict}"
