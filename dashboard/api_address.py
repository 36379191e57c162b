"""Where customers reach the API, as pages print it."""

from django.conf import settings

from headway.supervision import local_url


def gateway_url() -> str:
    return settings.PUBLIC_API_URL or local_url(settings.GATEWAY_HOST, settings.GATEWAY_PORT)


def api_url() -> str:
    """The base URL of an OpenAI client."""
    return f"{gateway_url()}/v1"


def socket_url() -> str:
    return "ws" + gateway_url().removeprefix("http") + "/v1/generate"
