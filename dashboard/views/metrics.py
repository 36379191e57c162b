"""`/metrics` of the site, for who has its token."""

import secrets

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from billing.services.drift_figures import drift_figures
from dashboard.metrics import registry_of
from inference.services.fleet_figures import fleet_figures


@require_GET
def metrics(request: HttpRequest) -> HttpResponse:
    """Without a token that is set there is no such page. An address proves nothing: a proxy before us has ours."""
    if not settings.METRICS_TOKEN:
        raise Http404("there is no such page")
    told = request.headers.get("authorization", "")
    if not secrets.compare_digest(told.encode(), f"Bearer {settings.METRICS_TOKEN}".encode()):
        return HttpResponse("Send the token of HEADWAY_METRICS_TOKEN.\n", status=401, headers={"www-authenticate": "Bearer"})
    content = generate_latest(registry_of(drift_figures(), fleet_figures(now=timezone.now())))
    return HttpResponse(content, content_type=CONTENT_TYPE_LATEST, headers={"cache-control": "no-store"})
