"""Releases: how a model's stable version gives way to another, what happened on the way, and who stays on a version."""

from typing import Any

from django.db import models
from django.db.models import Q


class RolloutState(models.TextChoices):
    DRAFT = "draft"
    STAGING = "staging"
    CERTIFYING = "certifying"
    SHADOW = "shadow"
    EVALS = "evals"
    CANARY = "canary"
    PAUSED = "paused"
    PROMOTED = "promoted"
    ROLLING_BACK = "rolling_back"
    ROLLED_BACK = "rolled_back"
    ABORTED = "aborted"


_S = RolloutState
ON_THE_WAY = (_S.STAGING, _S.CERTIFYING, _S.SHADOW, _S.EVALS, _S.CANARY)
"""In their order; from each a rollout may be paused, and rolled back."""
ENDED = (_S.PROMOTED, _S.ROLLED_BACK, _S.ABORTED)
_OUT = frozenset({_S.PAUSED, _S.ROLLING_BACK})
# Every other move is refused. From `promoted` the way back is open for the rollout's window, and may be given up for as long as
# the old version is not stable again (services/rollouts/going_back.py).
TRANSITIONS: dict[RolloutState, frozenset[RolloutState]] = {
    _S.DRAFT: frozenset({_S.STAGING, _S.ABORTED}),
    _S.STAGING: _OUT | {_S.CERTIFYING},
    _S.CERTIFYING: _OUT | {_S.SHADOW, _S.EVALS, _S.CANARY},
    _S.SHADOW: _OUT | {_S.EVALS, _S.CANARY},
    _S.EVALS: _OUT | {_S.CANARY},
    _S.CANARY: _OUT | {_S.PROMOTED},
    _S.PAUSED: frozenset({*ON_THE_WAY, _S.ROLLING_BACK}),
    _S.PROMOTED: frozenset({_S.ROLLING_BACK}),
    _S.ROLLING_BACK: frozenset({_S.ROLLED_BACK, _S.ABORTED, _S.PROMOTED}),
    _S.ROLLED_BACK: frozenset(),
    _S.ABORTED: frozenset(),
}


class Rollout(models.Model):
    """One release of one model, from draft to promoted or back. Its number is the salt of who sees the candidate."""

    model = models.ForeignKey("inference.Model", on_delete=models.PROTECT, related_name="rollouts")
    from_version = models.ForeignKey("inference.ModelVersion", on_delete=models.PROTECT, related_name="+")
    to_version = models.ForeignKey("inference.ModelVersion", on_delete=models.PROTECT, related_name="+")
    state = models.CharField(max_length=16, choices=RolloutState.choices, default=RolloutState.DRAFT)
    reason = models.CharField(max_length=1000, blank=True)
    paused_from = models.CharField(max_length=16, blank=True, help_text="where it goes on when it is resumed")
    is_aborted = models.BooleanField(default=False, help_text="somebody ended it: it is rolled back for that, not for a breach")
    # What was asked for: services/rollouts/plans.py reads and checks both.
    schedule = models.JSONField()
    gates = models.JSONField()
    step = models.PositiveSmallIntegerField(default=0, help_text="which of the canary's steps, from 0")
    share_ppm = models.PositiveIntegerField(default=0, help_text="of the requests, as gateways are told")
    shadow_share_ppm = models.PositiveIntegerField(default=0, help_text="of the requests that are mirrored")
    shadow_micros_left = models.PositiveBigIntegerField(
        default=0, help_text="of what mirrored requests may cost, not taken by a gateway yet"
    )
    window_s = models.PositiveIntegerField(help_text="after promotion, in which the way back takes a second")
    kept_warm = models.PositiveIntegerField(null=True, blank=True, help_text="of the old version meanwhile; null: all")
    scheduled_for = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    measured_since = models.DateTimeField(null=True, blank=True, help_text="when the state or step began that is judged now")
    engines_taken = models.PositiveIntegerField(
        default=0, db_default=0, help_text="of both versions, when it was last looked at: what failed with them is not judged"
    )
    promoted_at = models.DateTimeField(null=True, blank=True)
    breached_at = models.DateTimeField(null=True, blank=True, help_text="when a gate was found broken")
    ended_at = models.DateTimeField(null=True, blank=True)
    changed_at = models.DateTimeField(help_text="of its state")
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.CharField(max_length=200)
    # Two-person rule (services/rollouts/approving.py)
    approval_asked_at = models.DateTimeField(
        null=True, blank=True, help_text="operators were told that it waits for one of them"
    )
    approved_by = models.CharField(max_length=200, blank=True, help_text="who, beside its maker, wants it promoted")
    approved_at = models.DateTimeField(null=True, blank=True)
    # The newest: {"outcome", "findings": [...], "seen": {...}, "at"}
    verdict = models.JSONField(null=True, blank=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("model",), condition=~Q(state__in=ENDED), name="one_open_rollout_per_model"),
        )
        indexes = (models.Index(fields=("state",), name="rollout_by_state"),)

    def __str__(self) -> str:
        return f"rollout {self.pk} of {self.model_id}"

    @property
    def is_open(self) -> bool:
        return self.state not in ENDED


class EventQuerySet(models.QuerySet[Any]):
    """Nothing that is written is changed or taken away."""

    def update(self, **_values: Any) -> int:
        raise TypeError("what happened to a rollout is never changed")

    def delete(self) -> tuple[int, dict[str, int]]:
        raise TypeError("what happened to a rollout is never deleted")


class RolloutEvent(models.Model):
    """What happened to a rollout. Append-only."""

    rollout = models.ForeignKey(Rollout, on_delete=models.PROTECT, related_name="events")
    at = models.DateTimeField()
    kind = models.CharField(max_length=16, help_text="moved, step, share, breach, note, approval")
    from_state = models.CharField(max_length=16, blank=True)
    to_state = models.CharField(max_length=16, blank=True)
    actor = models.CharField(max_length=200, help_text="system: by itself")
    reason = models.CharField(max_length=1000, blank=True)
    evidence = models.JSONField(null=True)

    objects = EventQuerySet.as_manager()

    class Meta:
        indexes = (models.Index(fields=("rollout", "id"), name="events_of_rollout"),)

    def __str__(self) -> str:
        return f"{self.rollout_id} {self.kind} {self.to_state}"


class VersionPin(models.Model):
    """A tenant that stays on a version of a model, whatever is stable, until the version retires."""

    tenant_id = models.UUIDField()
    model = models.ForeignKey("inference.Model", on_delete=models.PROTECT, related_name="+")
    version = models.ForeignKey("inference.ModelVersion", on_delete=models.PROTECT, related_name="pins")
    is_in_force = models.BooleanField(default=False, help_text="gateways were told: a replica of the version serves")
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.CharField(max_length=200)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("tenant_id", "model"), name="one_pin_per_tenant_and_model"),)

    def __str__(self) -> str:
        return f"{self.tenant_id} on {self.version_id}"
