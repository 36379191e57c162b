"""Links to the site's pages, for mails."""

from django.conf import settings


def site_url(path: str) -> str:
    """`path` begins with a slash."""
    return f"{settings.SITE_URL}{path}"
