"""The ledger in the Django admin: to look at, never to change."""

from __future__ import annotations

from django.contrib import admin

from billing.account_models import BillingAccount, ExchangeRate, TaxRate
from billing.export_models import Export
from billing.gpu_cost_models import GpuCost
from billing.invoice_models import CreditNote, Invoice, Payment, Statement
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


@admin.register(BillingAccount)
class BillingAccountAdmin(AuditedAdmin):
    list_display = ("tenant_id", "legal_name", "country", "tax_id", "currency", "email")
    search_fields = ("tenant_id", "legal_name", "tax_id", "email")
    ordering = ("legal_name",)


@admin.register(TaxRate)
class TaxRateAdmin(AuditedAdmin):
    list_display = ("country", "name", "basis_points", "effective_from")
    ordering = ("country", "-effective_from")


@admin.register(ExchangeRate)
class ExchangeRateAdmin(AuditedAdmin):
    list_display = ("currency", "rate_nanos", "effective_from")
    ordering = ("currency", "-effective_from")


@admin.register(Statement)
class StatementAdmin(AuditedAdmin):
    list_display = ("tenant_id", "month", "total_minor", "currency", "closed_at", "closed_by")
    list_filter = ("month",)
    search_fields = ("tenant_id",)
    ordering = ("-month", "tenant_id")


@admin.register(Invoice)
class InvoiceAdmin(AuditedAdmin):
    list_display = ("number", "tenant_id", "state", "total_minor", "currency", "issued_on", "due_on")
    list_filter = ("state",)
    search_fields = ("number", "tenant_id")
    ordering = ("-id",)


@admin.register(CreditNote)
class CreditNoteAdmin(AuditedAdmin):
    list_display = ("number", "invoice", "total_minor", "reason", "issued_on")
    search_fields = ("number", "invoice__number")
    ordering = ("-id",)


@admin.register(Payment)
class PaymentAdmin(AuditedAdmin):
    list_display = ("reference", "provider", "invoice", "amount_minor", "paid_at", "actor")
    search_fields = ("reference", "invoice__number")
    ordering = ("-id",)


@admin.register(GpuCost)
class GpuCostAdmin(AuditedAdmin):
    list_display = ("machine_kind", "model", "cost_micros", "effective_from")
    ordering = ("machine_kind", "model", "-effective_from")


@admin.register(Export)
class ExportAdmin(AuditedAdmin):
    list_display = ("created_at", "kind", "tenant_id", "asked_by", "state", "rows_done", "rows_total", "reason")
    list_filter = ("state", "kind")
    ordering = ("-created_at",)
