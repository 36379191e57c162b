"""The operators' pages."""

from django.urls import path

from dashboard.views import (
    operator_adjustments,
    operator_exports,
    operator_fleet,
    operator_invoices,
    operator_jobs,
    operator_prices,
    operator_reconciliation,
    operator_reports,
    operator_tenants,
)

T = "tenants/<slug:tenant>/"
INVOICE = "invoices/<slug:number>/"
ZONE = "fleet/zones/<str:zone>/"
REPLICA = "fleet/replicas/<slug:replica>/"

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
    path(T + "debit/", operator_tenants.debit, name="operator_debit"),
    path("fleet/", operator_fleet.fleet, name="operator_fleet"),
    path(ZONE, operator_fleet.zone, name="operator_zone"),
    path(ZONE + "drain/", operator_fleet.drain, name="operator_zone_drain"),
    path(ZONE + "undrain/", operator_fleet.undrain, name="operator_zone_undrain"),
    path("fleet/nodes/<str:node>/cordon/", operator_fleet.cordon, name="operator_cordon"),
    path("fleet/nodes/<str:node>/forget/", operator_fleet.forget, name="operator_node_forget"),
    path(REPLICA, operator_fleet.replica, name="operator_replica"),
    path(REPLICA + "drain/", operator_fleet.move, name="operator_replica_drain"),
    path(REPLICA + "restart/", operator_fleet.restart, name="operator_replica_restart"),
    path(REPLICA + "log/", operator_fleet.log, name="operator_replica_log"),
    path("jobs/", operator_jobs.jobs, name="operator_jobs"),
    path("jobs/<id:entry_id>/again/", operator_jobs.again, name="operator_job_again"),
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
