"""The operators' pages."""

from django.urls import path

from dashboard.views import operator_tenants

T = "tenants/<slug:tenant>/"

urlpatterns = [
    path("", operator_tenants.tenants, name="operator_tenants"),
    path("leave/", operator_tenants.leave, name="operator_leave"),
    path(T, operator_tenants.tenant, name="operator_tenant"),
    path(T + "suspend/", operator_tenants.suspend, name="operator_suspend"),
    path(T + "resume/", operator_tenants.resume, name="operator_resume"),
    path(T + "plan/", operator_tenants.plan, name="operator_plan"),
    path(T + "visit/", operator_tenants.visit, name="operator_visit"),
]
