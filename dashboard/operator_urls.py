"""The operators' pages."""

from django.urls import path

from dashboard.views import (
    operator_adjustments,
    operator_exports,
    operator_invoices,
    operator_pools,
    operator_prices,
    operator_reconciliation,
    operator_registry,
    operator_reports,
    operator_rollouts,
    operator_tenants,
)

T = "tenants/<slug:tenant>/"
INVOICE = "invoices/<slug:number>/"
MODEL = "models/<int:model>/"

urlpatterns = [
    path("", operator_tenants.tenants, name="operator_tenants"),
    path("reports/", operator_reports.reports, name="operator_reports"),
    path("reports.csv", operator_reports.usage_csv, name="operator_reports_csv"),
    path("reports-margins.csv", operator_reports.margins_csv, name="operator_margins_csv"),
    path("reports.pdf", operator_reports.pdf, name="operator_reports_pdf"),
    path("exports/", operator_exports.exports, name="operator_exports"),
    path("exports/new/", operator_exports.new, name="operator_exports_new"),
    path("exports/<uuid:export_id>/file/", operator_exports.download, name="operator_exports_file"),
    path("leave/", operator_tenants.leave, name="operator_leave"),
    path(T, operator_tenants.tenant, name="operator_tenant"),
    path(T + "suspend/", operator_tenants.suspend, name="operator_suspend"),
    path(T + "resume/", operator_tenants.resume, name="operator_resume"),
    path(T + "plan/", operator_tenants.plan, name="operator_plan"),
    path(T + "grant/", operator_tenants.grant, name="operator_grant"),
    path("models/", operator_registry.models, name="operator_models"),
    path(MODEL, operator_registry.model, name="operator_model"),
    path(MODEL + "stage/", operator_registry.stage, name="operator_stage"),
    path(MODEL + "<slug:label>/retire/", operator_registry.retire, name="operator_retire"),
    path(MODEL + "rollout/", operator_rollouts.new, name="operator_rollout_new"),
    path("rollouts/", operator_rollouts.rollouts, name="operator_rollouts"),
    path("rollouts/<int:number>/", operator_rollouts.rollout, name="operator_rollout"),
    path("rollouts/<int:number>/<slug:verb>/", operator_rollouts.act, name="operator_rollout_act"),
    path(T + "debit/", operator_tenants.debit, name="operator_debit"),
    path("pools/", operator_pools.pools, name="operator_pools"),
    path("pools/<id:pool_id>/", operator_pools.change, name="operator_pool"),
    path("scaling/", operator_pools.decisions, name="operator_decisions"),
    path("prices/", operator_prices.prices, name="operator_prices"),
    path("prices/new/", operator_prices.new, name="operator_price_new"),
    path("invoices/", operator_invoices.invoices, name="operator_invoices"),
    path(INVOICE, operator_invoices.invoice, name="operator_invoice"),
    path(INVOICE + "pay/", operator_invoices.pay, name="operator_pay"),
    path(INVOICE + "credit/", operator_invoices.credit, name="operator_credit"),
    path(INVOICE + "void/", operator_invoices.void, name="operator_void"),
    path(INVOICE + "write-off/", operator_invoices.write_off, name="operator_write_off"),
    path("documents/<slug:number>.pdf", operator_invoices.pdf, name="operator_pdf"),
    path("close/", operator_invoices.closing, name="operator_close"),
    path("close/now/", operator_invoices.close, name="operator_close_now"),
    path("reconciliation/", operator_reconciliation.runs, name="operator_reconciliations"),
    path("reconciliation/now/", operator_reconciliation.ask, name="operator_reconcile_now"),
    path("reconciliation/<id:run_id>/", operator_reconciliation.run, name="operator_reconciliation"),
    path("adjustments/", operator_adjustments.adjustments, name="operator_adjustments"),
    path("adjustments/goodwill/", operator_adjustments.goodwill, name="operator_goodwill"),
    path("adjustments/<slug:request_id>/", operator_adjustments.adjust, name="operator_adjust"),
    path(T + "visit/", operator_tenants.visit, name="operator_visit"),
]
