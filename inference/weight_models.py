"""Copies of versions' weights on nodes: wanted before they are needed, carried out by the node's agent."""

from django.db import models


class CopyState(models.TextChoices):
    WANTED = "wanted"
    STAGING = "staging"
    STAGED = "staged"
    FAILED = "failed"
    EVICTED = "evicted"


_S = CopyState
# Every other move is refused. A staged copy whose files are gone or damaged is wanted again.
COPY_TRANSITIONS: dict[CopyState, frozenset[CopyState]] = {
    _S.WANTED: frozenset({_S.STAGING, _S.STAGED, _S.FAILED, _S.EVICTED}),
    _S.STAGING: frozenset({_S.STAGED, _S.FAILED, _S.WANTED}),
    _S.STAGED: frozenset({_S.WANTED, _S.EVICTED}),
    _S.FAILED: frozenset({_S.WANTED, _S.STAGING, _S.STAGED, _S.EVICTED}),
    _S.EVICTED: frozenset({_S.WANTED, _S.STAGED}),
}


class WeightCopy(models.Model):
    """One version's weights on one node's disk."""

    version = models.ForeignKey("inference.ModelVersion", on_delete=models.CASCADE, related_name="copies")
    node = models.CharField(max_length=100)
    state = models.CharField(max_length=16, choices=CopyState.choices, default=CopyState.WANTED)
    reason = models.CharField(max_length=1000, blank=True)
    is_final = models.BooleanField(default=False, help_text="it failed for good: tried again when somebody asks")
    bytes_done = models.BigIntegerField(default=0)
    bytes_total = models.BigIntegerField(default=0, help_text="0: not known yet")
    digest = models.CharField(max_length=64, blank=True)
    keep_until = models.DateTimeField(help_text="not evicted before, though nothing needs it yet")
    last_used_at = models.DateTimeField(null=True, help_text="when an engine was last started from it")
    changed_at = models.DateTimeField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name_plural = "weight copies"
        constraints = (models.UniqueConstraint(fields=("version", "node"), name="one_weight_copy_per_node"),)
        indexes = (models.Index(fields=("node", "state"), name="weight_copies_by_node"),)

    def __str__(self) -> str:
        return f"{self.version} on {self.node}: {self.state}"
