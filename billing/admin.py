"""The ledger in the Django admin: to look at, never to change."""

from __future__ import annotations

from django.contrib import admin

from billing.models import MonthSpend, Price, UsageRecord
from headway.admin_pages import AuditedAdmin


@admin.register(UsageRecord)
class UsageRecordAdmin(AuditedAdmin):
    list_display = (
        "ended_at",
        "request_id",
        "tenant_id",
        "model",
        "end_state",
        "prompt_tokens",
        "completion_tokens",
        "total_ms",
    )
    list_filter = ("end_state", "model", "route")
    search_fields = ("request_id", "tenant_id", "key_id")
    date_hierarchy = "ended_at"
    ordering = ("-id",)


@admin.register(Price)
class PriceAdmin(AuditedAdmin):
    list_display = ("model", "version", "tier", "input_micros", "cached_micros", "output_micros", "effective_from")
    list_filter = ("model",)
    ordering = ("model", "-version")


@admin.register(MonthSpend)
class MonthSpendAdmin(AuditedAdmin):
    list_display = ("tenant_id", "month", "key_id", "model", "amount_picos")
    list_filter = ("month",)
    search_fields = ("tenant_id", "key_id")
    ordering = ("-month", "tenant_id")
