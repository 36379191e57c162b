"""What the API takes and gives of usage and requests."""

from datetime import UTC, date, datetime, time, tzinfo
from typing import Any

from rest_framework import serializers as s

from headway.errors import InvalidInput
from headway.money import picos_to_usd
from tenants.models import Tier


class UsageAsked(s.Serializer):
    """`from` and `to` are dates, or times in ISO 8601; without an offset they are of the time zone."""

    to = s.CharField(required=False, max_length=40)
    granularity = s.ChoiceField(["minute", "hour", "day"], default="hour")
    group_by = s.ChoiceField(["model", "key", "member", "version", "tier"], required=False)
    time_zone = s.CharField(required=False, max_length=64, help_text="the organisation's, unless given")
    model = s.CharField(required=False, max_length=200)
    key = s.CharField(required=False, max_length=16)
    member = s.IntegerField(required=False, min_value=0, max_value=2**53, help_text="0: nobody's")
    version = s.CharField(required=False, max_length=64)
    tier = s.ChoiceField(Tier.values, required=False)

    def get_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"from": s.CharField(required=False, max_length=40)}  # a word of Python's
        fields |= super().get_fields()
        return fields


class Usd(s.CharField):
    """Of pico-dollars: US dollars as a decimal number, exactly."""

    def __init__(self, **options: Any) -> None:
        super().__init__(help_text='US dollars, exactly, as text: "0.0000015"', **options)

    def to_representation(self, value: int) -> str:
        return picos_to_usd(int(value))  # PostgreSQL's sums are Decimals of whole numbers


class UsageSums(s.Serializer):
    requests = s.IntegerField()
    errors = s.IntegerField()
    prompt_tokens = s.IntegerField()
    cached_tokens = s.IntegerField()
    completion_tokens = s.IntegerField()
    amount_usd = Usd(source="amount_picos")
    ttft_count = s.IntegerField(help_text="requests that had a first token")
    ttft_ms_mean = s.FloatField(allow_null=True)
    ttft_ms_p50 = s.FloatField(allow_null=True)
    ttft_ms_p95 = s.FloatField(allow_null=True)


class UsageBucketShape(UsageSums):
    starts_at = s.DateTimeField()
    group = s.CharField(allow_blank=True)
    label = s.CharField(allow_blank=True, help_text="a key's name, a member's name; else the group itself")


class UsageShape(s.Serializer):
    """Half-open: from the first instant, up to and without the last. Buckets in which nothing happened are left out."""

    to = s.DateTimeField()
    time_zone = s.CharField()
    granularity = s.CharField()
    group_by = s.CharField(allow_blank=True)
    as_of = s.DateTimeField()
    totals = UsageSums()
    buckets = UsageBucketShape(many=True)

    def get_fields(self) -> dict[str, Any]:
        return {"from": s.DateTimeField(), **super().get_fields()}


class RequestsAsked(s.Serializer):
    to = s.CharField(required=False, max_length=40)
    model = s.CharField(required=False, max_length=200)
    key = s.CharField(required=False, max_length=16)
    tier = s.ChoiceField(Tier.values, required=False)
    end_state = s.CharField(required=False, max_length=32)

    def get_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"from": s.CharField(required=False, max_length=40)}
        fields |= super().get_fields()
        return fields


class RequestShape(s.Serializer):
    """The receipt of a request that has ended: what it was rated at, and what corrections have added to that since."""

    id = s.CharField(source="request_id")
    route = s.CharField()
    model = s.CharField()
    version = s.CharField(allow_blank=True)
    key = s.CharField(source="key_id")
    member = s.IntegerField(source="member_id", allow_null=True)
    tier = s.CharField()
    end_state = s.CharField()
    finish_reason = s.CharField(allow_blank=True)
    prompt_tokens = s.IntegerField()
    cached_tokens = s.IntegerField()
    completion_tokens = s.IntegerField()
    usage_source = s.CharField()
    queue_ms = s.IntegerField()
    ttft_ms = s.IntegerField(allow_null=True)
    total_ms = s.IntegerField()
    replica = s.CharField(allow_blank=True)
    route_reason = s.CharField(allow_blank=True)
    attempts = s.IntegerField()
    resumes = s.IntegerField()
    is_resumed_exactly = s.BooleanField()
    price_version = s.CharField(allow_blank=True)
    discount_percent = s.IntegerField()
    amount_usd = Usd(source="amount_picos", allow_null=True)
    corrections_usd = Usd(source="corrected_picos")
    started_at = s.DateTimeField()
    ended_at = s.DateTimeField()


def time_of(text: str, zone: tzinfo, *, param: str) -> datetime:
    """A date (its midnight there) or a time. Raises InvalidInput."""
    try:
        if len(text) == 10:
            return datetime.combine(date.fromisoformat(text), time(), zone).astimezone(UTC)
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"{param} is a date or a time in ISO 8601, such as 2026-11-29 or 2026-11-29T20:00:00Z", param=param
        ) from None
