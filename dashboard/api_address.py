"""Where customers reach the API, as pages print it."""

from django.conf import settings


def api_url() -> str:
    """The base URL of an OpenAI client."""
    return f"{settings.API_URL}/v1"


def socket_url() -> str:
    return "ws" + settings.API_URL.removeprefix("http") + "/v1/generate"
