"""Eval sets, runs of them on a version, what each case came to, and sets that are gates.

Cases are rows, not a file beside the database: a run's samples refer to them, a worker that was killed goes on with those
that have no sample yet, and pages show them fifty at a time. A set has at most 20,000 (inference/evals/readers.py).
An eval set is the operator's own data, and so are the answers to it: they are kept, unlike any customer's.
"""

from django.db import models

from headway.picos_field import PicosField


class EvalSet(models.Model):
    """Cases under a name, for good: other cases under the same name are its next number."""

    name = models.SlugField(max_length=63)
    number = models.PositiveIntegerField()
    description = models.CharField(max_length=500, blank=True)
    digest = models.CharField(max_length=64, help_text="SHA-256 of its cases")
    num_cases = models.PositiveIntegerField()
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.CharField(max_length=200, help_text="as the audit log names them")

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("name", "number"), name="one_number_per_eval_set"),
            models.UniqueConstraint(fields=("name", "digest"), name="an_eval_set_has_its_cases_once"),
        )

    def __str__(self) -> str:
        return f"{self.name} {self.number}"


class EvalCase(models.Model):
    eval_set = models.ForeignKey(EvalSet, on_delete=models.CASCADE, related_name="cases")
    position = models.PositiveIntegerField()
    case_id = models.CharField(max_length=100)
    content = models.JSONField(help_text="messages, max_tokens, sampling, checks, tags: inference/evals/cases.py")

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("eval_set", "position"), name="one_case_at_a_position"),
            models.UniqueConstraint(fields=("eval_set", "case_id"), name="one_case_of_an_id"),
        )

    def __str__(self) -> str:
        return f"{self.eval_set_id} {self.case_id}"


class EvalState(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


_S = EvalState
EVAL_TRANSITIONS: dict[EvalState, frozenset[EvalState]] = {
    _S.QUEUED: frozenset({_S.RUNNING, _S.CANCELLED}),
    _S.RUNNING: frozenset({_S.DONE, _S.FAILED, _S.CANCELLED}),
    _S.DONE: frozenset(),
    _S.FAILED: frozenset(),
    _S.CANCELLED: frozenset(),
}
OPEN_EVALS = (EvalState.QUEUED, EvalState.RUNNING)


class EvalRun(models.Model):
    """A set asked of one version of a model. Counts are those of its samples, kept with each."""

    eval_set = models.ForeignKey(EvalSet, on_delete=models.PROTECT, related_name="runs")
    model = models.ForeignKey("inference.Model", on_delete=models.PROTECT, related_name="+")
    version = models.ForeignKey(
        "inference.ModelVersion", null=True, on_delete=models.PROTECT, related_name="+", help_text="null: replicas by URL alone"
    )
    state = models.CharField(max_length=16, choices=EvalState.choices, default=EvalState.QUEUED)
    reason = models.CharField(max_length=300, blank=True, help_text="why it failed, or what it waits for")
    concurrency = models.PositiveSmallIntegerField(help_text="requests at once")
    cases_total = models.PositiveIntegerField()
    cases_done = models.PositiveIntegerField(default=0)
    passed = models.PositiveIntegerField(default=0)
    errors = models.PositiveIntegerField(default=0, help_text="cases that were not answered; none of them has passed")
    score = models.FloatField(null=True, help_text="share of cases that passed, once it is done")
    score_low = models.FloatField(null=True, help_text="Wilson, 95 %")
    score_high = models.FloatField(null=True)
    prompt_tokens = models.BigIntegerField(default=0)
    completion_tokens = models.BigIntegerField(default=0)
    cost_picos = PicosField(default=0, help_text="at the list price of the batch tier, which is not charged")
    starts = models.PositiveIntegerField(default=0, help_text="since it last came further")
    key_id = models.CharField(max_length=16, blank=True, help_text="of the key it asks with, until that is revoked")
    is_baseline = models.BooleanField(default=False, help_text="what other runs of the set on this model are held against")
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.CharField(max_length=200)
    started_at = models.DateTimeField(null=True)
    changed_at = models.DateTimeField(help_text="when its state changed last, or a case was answered")
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("eval_set", "model"), condition=models.Q(is_baseline=True), name="one_baseline_per_eval_set_and_model"
            ),
        )
        indexes = (
            models.Index(fields=("state", "id"), name="eval_runs_by_state"),
            models.Index(fields=("model", "eval_set", "version"), name="eval_runs_by_version"),
        )

    def __str__(self) -> str:
        return f"eval run {self.id}"


class EvalSample(models.Model):
    """What one case came to."""

    run = models.ForeignKey(EvalRun, on_delete=models.CASCADE, related_name="samples")
    case = models.ForeignKey(EvalCase, on_delete=models.PROTECT, related_name="+")
    has_passed = models.BooleanField()
    score = models.FloatField(help_text="share of its checks that passed")
    checks = models.JSONField(default=list, help_text="[{kind, has_passed, reason}]")
    text = models.TextField(blank=True, help_text="the answer")
    finish_reason = models.CharField(max_length=32, blank=True)
    error = models.CharField(max_length=300, blank=True, help_text="why there is no answer")
    request_id = models.CharField(max_length=64, blank=True)
    latency_ms = models.PositiveIntegerField(default=0)
    prompt_tokens = models.PositiveIntegerField(default=0)
    completion_tokens = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "case"), name="one_sample_per_run_and_case"),)
        indexes = (models.Index(fields=("run", "has_passed", "case"), name="eval_samples_failed_first"),)

    def __str__(self) -> str:
        return f"{self.run_id} {self.case_id}"


class EvalGate(models.Model):
    """A set that a version of this model must do well on, before it is released. Shares are 0 to 1."""

    model = models.ForeignKey("inference.Model", on_delete=models.CASCADE, related_name="+")
    eval_set = models.ForeignKey(EvalSet, on_delete=models.PROTECT, related_name="+")
    min_score = models.FloatField(null=True, help_text="with the confidence, the score is not below")
    max_drop = models.FloatField(null=True, help_text="with the confidence, it is below the stable version's by no more")
    confidence = models.FloatField(default=0.95, help_text="of one side")
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.CharField(max_length=200)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("model", "eval_set"), name="one_gate_per_model_and_eval_set"),
            models.CheckConstraint(
                condition=models.Q(min_score__isnull=False) | models.Q(max_drop__isnull=False),
                name="an_eval_gate_asks_something",
            ),
        )

    def __str__(self) -> str:
        return f"gate {self.eval_set} of {self.model}"
