"""What the API takes and gives of evals. Scores, bounds and differences are shares, 0 to 1."""

from rest_framework import serializers as s

from inference.eval_models import EvalState
from inference.evals.readers import FORMATS
from inference.services.evals.runs import DEFAULT_CONCURRENCY, MAX_CONCURRENCY

MAX_CONTENT_CHARS = 8_000_000
SET = "its name, or name@number"


class EvalSetShape(s.Serializer):
    id = s.IntegerField()
    eval_set = s.CharField(help_text="name@number")
    description = s.CharField()
    cases = s.IntegerField()
    digest = s.CharField(help_text="SHA-256 of its cases")
    created_at = s.DateTimeField()
    created_by = s.CharField()


class NewEvalSet(s.Serializer):
    name = s.CharField(max_length=63, help_text="other cases under a known name are its next number")
    content = s.CharField(
        max_length=MAX_CONTENT_CHARS, trim_whitespace=False, help_text="a JSON object a line; larger files by import_eval_set"
    )
    format = s.ChoiceField(["auto", *FORMATS], required=False, default="auto")
    limit = s.IntegerField(required=False, allow_null=True, default=None, min_value=1, help_text="the first so many cases")
    description = s.CharField(required=False, default="", max_length=500, allow_blank=True)


class EvalCaseShape(s.Serializer):
    case = s.CharField()
    position = s.IntegerField()
    messages = s.ListField(child=s.DictField())
    max_tokens = s.IntegerField()
    sampling = s.DictField()
    checks = s.ListField(child=s.DictField())
    tags = s.ListField(child=s.CharField())


class EvalRunsAsked(s.Serializer):
    model = s.CharField(required=False, max_length=200)
    eval_set = s.CharField(required=False, max_length=100, help_text=SET)


class NewEvalRun(s.Serializer):
    eval_set = s.CharField(max_length=100, help_text=SET)
    model = s.CharField(max_length=200)
    version = s.CharField(required=False, default="", max_length=20, allow_blank=True, help_text="such as v2; blank: stable")
    concurrency = s.IntegerField(required=False, default=DEFAULT_CONCURRENCY, min_value=1, max_value=MAX_CONCURRENCY)


class EvalRunShape(s.Serializer):
    id = s.IntegerField()
    eval_set = s.CharField()
    model = s.CharField()
    version = s.CharField(help_text="blank: replicas by URL")
    state = s.ChoiceField(EvalState.choices)
    reason = s.CharField()
    is_open = s.BooleanField()
    is_baseline = s.BooleanField()
    concurrency = s.IntegerField()
    cases = s.IntegerField()
    cases_done = s.IntegerField()
    passed = s.IntegerField()
    errors = s.IntegerField(help_text="cases that were not answered")
    score = s.FloatField(allow_null=True, help_text="null until it is done")
    score_low = s.FloatField(allow_null=True, help_text="Wilson, 95 %")
    score_high = s.FloatField(allow_null=True)
    prompt_tokens = s.IntegerField()
    completion_tokens = s.IntegerField()
    cost_usd = s.CharField(help_text="at list price, not charged; a decimal number as text")
    wall_s = s.FloatField()
    created_at = s.DateTimeField()
    created_by = s.CharField()
    started_at = s.DateTimeField(allow_null=True)
    ended_at = s.DateTimeField(allow_null=True)


class SamplesAsked(s.Serializer):
    outcome = s.ChoiceField(["passed", "failed", "error"], required=False)


class CheckResultShape(s.Serializer):
    kind = s.CharField()
    has_passed = s.BooleanField()
    reason = s.CharField()


class EvalSampleShape(s.Serializer):
    case = s.CharField()
    has_passed = s.BooleanField()
    score = s.FloatField(help_text="share of its checks that passed")
    checks = CheckResultShape(many=True)
    text = s.CharField(help_text="the answer")
    finish_reason = s.CharField()
    error = s.CharField(help_text="why there is no answer")
    request_id = s.CharField()
    latency_ms = s.IntegerField()
    prompt_tokens = s.IntegerField()
    completion_tokens = s.IntegerField()


class ComparisonShape(s.Serializer):
    run = s.IntegerField()
    against = s.IntegerField()
    cases = s.IntegerField(help_text="that both have answered")
    both_passed = s.IntegerField()
    only_run_passed = s.IntegerField()
    only_against_passed = s.IntegerField()
    neither_passed = s.IntegerField()
    difference = s.FloatField()
    difference_low = s.FloatField(help_text="95 %")
    difference_high = s.FloatField()
    p_value = s.FloatField(help_text="McNemar's, exact")
    is_regression = s.BooleanField()
    is_improvement = s.BooleanField()


class EvalGateShape(s.Serializer):
    id = s.IntegerField()
    model = s.CharField()
    eval_set = s.CharField()
    min_score = s.FloatField(allow_null=True)
    max_drop = s.FloatField(allow_null=True)
    confidence = s.FloatField(help_text="of one side")
    created_at = s.DateTimeField()
    created_by = s.CharField()


class GatesAsked(s.Serializer):
    model = s.CharField(required=False, max_length=200)


class NewEvalGate(s.Serializer):
    model = s.CharField(max_length=200)
    eval_set = s.CharField(max_length=100, help_text=SET)
    min_score = s.FloatField(required=False, allow_null=True, default=None)
    max_drop = s.FloatField(required=False, allow_null=True, default=None, help_text="below the stable version's score")
    confidence = s.FloatField(required=False, default=0.95)
