"""`/api/v1/`: the routes of all apps."""

from django.urls import path, re_path

from billing.api import routes as billing
from dashboard.api import routes as dashboard
from inference.api import routes as inference
from tenants.api import document, errors, members, tenants
from tenants.api import urls as tenants_urls

OF_TENANT = tenants_urls.OF_TENANT | billing.OF_TENANT | inference.OF_TENANT
"""Below `tenants/<tenant>/`: every one is a TenantView (a test walks them all)."""
OF_OPERATORS = tenants_urls.OF_OPERATORS | billing.OF_OPERATORS | inference.OF_OPERATORS | dashboard.OF_OPERATORS
"""Below `operator/`: every one is an OperatorView (a test walks them all)."""

urlpatterns = [
    path("openapi.json", document.Document.as_view(), name="api-schema"),
    path("docs/", document.Page.as_view(url_name="api-schema"), name="api-docs"),
    path("tenants/", tenants.Tenants.as_view(), name="api-tenants"),
    path("invitations/accept/", members.AcceptInvitation.as_view(), name="api-accept"),
    *(path(f"tenants/<slug:tenant>/{rest}", view.as_view()) for rest, view in OF_TENANT.items()),
    *(path(f"operator/{rest}", view.as_view()) for rest, view in OF_OPERATORS.items()),
    re_path(r"^.*$", errors.unknown_path),
]
