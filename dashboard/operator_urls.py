"""The operators' pages."""

from django.urls import path

from dashboard.views import operator_exports, operator_reports, operator_tenants

T = "tenants/<slug:tenant>/"

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
    path(T + "visit/", operator_tenants.visit, name="operator_visit"),
]
