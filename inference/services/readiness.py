"""Wait until models answer through the gateway, saying what is going on meanwhile."""

import time
from collections.abc import Callable, Sequence

import httpx
from django.conf import settings
from django.utils import timezone

from headway.errors import Unavailable
from headway.local_url import local_url
from inference.selectors import ModelStatus, fleet_status

ASK_EVERY_S = 0.5


class NotReadyInTime(Unavailable):
    """Read the reason it gives; the models are not being served yet."""


def wait_until_ready(*, models: Sequence[str], key: str, within_s: float, say: Callable[[str], None]) -> None:
    """Return when each model has streamed a token through the gateway. Raises NotReadyInTime with the last reason."""
    deadline_s = time.monotonic() + within_s
    started_s, said, missing = time.monotonic(), "", list(models)
    while missing:
        states = {model.id: model for model in fleet_status(timezone.now()).models}
        line = "; ".join(_line(states[model]) for model in missing)
        if line != said:
            say(f"[{time.monotonic() - started_s:4.0f} s] {line}")
            said = line
        missing = [model for model in missing if not (states[model].ready and answers(model, key))]
        if missing and time.monotonic() > deadline_s:
            raise NotReadyInTime(f"not ready after {within_s:.0f} s: {line}; logs are in {settings.HOME.logs}")
        time.sleep(ASK_EVERY_S if missing else 0)


def answers(model: str, key: str) -> bool:
    """Does a one-token request through the gateway get a 200?"""
    try:
        response = httpx.post(
            local_url(settings.GATEWAY_HOST, settings.GATEWAY_PORT) + "/v1/chat/completions",
            headers={"authorization": f"Bearer {key}"},
            json={"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]},
            timeout=30,
        )
    except httpx.HTTPError:
        return False
    return response.status_code == httpx.codes.OK


def _line(model: ModelStatus) -> str:
    if not model.replicas:
        return f"{model.id}: no replica"
    return f"{model.id}: " + ", ".join(f"{r.state}{f' ({r.reason})' if r.reason else ''}" for r in model.replicas)
