"""What is kept of pools: decisions with their reasons, what the autoscaler remembers, who asked for a wake-up, how starts went,
how each minute went."""

from django.db import models


class ScaleDecision(models.Model):
    """How many were to serve, and why: a row where the number, or the reason, is another than before."""

    pool = models.ForeignKey("inference.Pool", on_delete=models.CASCADE, related_name="scale_decisions")
    at = models.DateTimeField(db_index=True)
    before = models.PositiveIntegerField(help_text="of the stable version, wanted in rotation")
    desired = models.PositiveIntegerField()
    reason = models.CharField(max_length=300)
    evidence = models.JSONField(default=dict)
    decided_by = models.CharField(max_length=200, default="autoscaler")
    problem = models.CharField(max_length=500, blank=True, help_text="why it could not be carried out")

    class Meta:
        indexes = (models.Index(fields=("pool", "-id"), name="scale_decision_by_pool"),)

    def __str__(self) -> str:
        return f"{self.pool_id}: {self.before} -> {self.desired}"


class ScaleMemory(models.Model):
    """What the autoscaler remembers of a pool between two looks (policy/autoscale.py: Memory), moved by UPDATE ... WHERE
    looks = expected: of two that look at once, one decides."""

    pool = models.OneToOneField("inference.Pool", primary_key=True, on_delete=models.CASCADE, related_name="+")
    looks = models.PositiveBigIntegerField(default=0)
    looked_at = models.DateTimeField(null=True)
    memory = models.JSONField(default=dict)

    def __str__(self) -> str:
        return f"memory of {self.pool_id}"


class WakeUp(models.Model):
    """A request waits for a pool that serves nothing: one row, however many ask. Gone once something serves."""

    pool = models.OneToOneField("inference.Pool", primary_key=True, on_delete=models.CASCADE, related_name="wake_up")
    asked_at = models.DateTimeField()
    asked_by = models.CharField(max_length=200, help_text="the dispatcher")
    taken_at = models.DateTimeField(null=True, help_text="when replicas were asked for")
    refused = models.CharField(max_length=500, blank=True, help_text="why none could be")

    def __str__(self) -> str:
        return f"wake-up of {self.pool_id}"


class ReplicaStart(models.Model):
    """One start of a managed replica, by the moments of its agent's moves."""

    replica = models.CharField(max_length=32, db_index=True)
    pool = models.ForeignKey("inference.Pool", on_delete=models.CASCADE, related_name="starts")
    version = models.CharField(max_length=16)
    node = models.CharField(max_length=100)
    requested_at = models.DateTimeField()
    staging_at = models.DateTimeField(help_text="its agent has it")
    starting_at = models.DateTimeField(null=True, help_text="its weights are there")
    certifying_at = models.DateTimeField(null=True, help_text="its engine answers")
    up_at = models.DateTimeField(null=True, help_text="ready, or warm", db_index=True)

    def __str__(self) -> str:
        return f"start of {self.replica}"


class PoolMinute(models.Model):
    """How one pool did in one minute, by what the dispatcher showed of it at each look (services/pool_minutes.py)."""

    pool = models.ForeignKey("inference.Pool", on_delete=models.CASCADE, related_name="minutes")
    at = models.DateTimeField(db_index=True, help_text="when the minute began")
    figures = models.JSONField(default=dict, help_text="by name: [looks that knew it, their sum, the most]")

    class Meta:
        constraints = (models.UniqueConstraint(fields=("pool", "at"), name="one_row_per_pool_and_minute"),)

    def __str__(self) -> str:
        return f"{self.pool_id} at {self.at}"
