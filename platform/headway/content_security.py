"""The Content-Security-Policy of a page: the strict one of the settings, and a looser one under /admin/ alone."""

from csp.middleware import CSPMiddleware
from django.http import HttpRequest, HttpResponseBase

# Django's admin and its widgets write styles into elements.
ADMIN_POLICY = {
    "default-src": ["'none'"],
    "script-src": ["'self'"],
    "style-src": ["'self'", "'unsafe-inline'"],
    "img-src": ["'self'", "data:"],
    "font-src": ["'self'"],
    "connect-src": ["'self'"],
    "form-action": ["'self'"],
    "base-uri": ["'none'"],
    "frame-ancestors": ["'none'"],
}


class ContentSecurityMiddleware(CSPMiddleware):
    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if request.path_info.startswith("/admin/"):
            response._csp_config = ADMIN_POLICY  # type: ignore[attr-defined]
        done: HttpResponseBase = super().process_response(request, response)
        return done
