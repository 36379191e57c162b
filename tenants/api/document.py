"""The OpenAPI document, and the page that shows it (its files come with the site: no CDN)."""

from drf_spectacular.views import SpectacularJSONAPIView, SpectacularSwaggerSplitView


class Document(SpectacularJSONAPIView):
    """GET /api/v1/openapi.json: no key is needed."""

    authentication_classes = ()
    permission_classes = ()


class Page(SpectacularSwaggerSplitView):
    """GET /api/v1/docs/: its script is a URL of its own, so that the site's policy for scripts holds."""

    authentication_classes = ()
    permission_classes = ()
