"""The site's routes."""

from django.contrib import admin
from django.urls import include, path

from dashboard.accounts import limited
from dashboard.operator_login import OperatorLoginForm
from dashboard.views.metrics import metrics
from headway import health

admin.site.site_header = admin.site.site_title = "Headway"
admin.site.login_form, admin.site.login_template = OperatorLoginForm, "operator/log_in.html"

urlpatterns = [
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("metrics", metrics, name="metrics"),
    path("admin/login/", limited("login")(admin.site.login)),  # as often as anybody's log-in
    path("admin/", admin.site.urls),
    path("api/v1/", include("headway.urls_api")),
    path("operator/", include("dashboard.operator_urls")),
    path("", include("dashboard.urls")),
]
